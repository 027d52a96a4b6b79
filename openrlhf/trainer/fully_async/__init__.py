"""The pool pipeline around upstream's trainer: prompts, groups, batches, weight sync, checkpoints."""
