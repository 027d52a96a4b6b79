"""Data of the multi-turn tasks, written by `python -m examples.tasks.<task> --out DIR`."""
