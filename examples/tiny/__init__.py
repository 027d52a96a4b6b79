"""Real models and data, small enough to build and train on two CPU cores. See `python -m examples.tiny.build`."""
