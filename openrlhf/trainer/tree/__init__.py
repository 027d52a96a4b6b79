"""TRACE around the pool pipeline: branching, tree rollouts, the predictor's actor, credit for the trainer."""
