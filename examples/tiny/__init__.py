"""Real models and data that are small enough to build and train on two CPU cores. See `python -m examples.tiny.build`."""
