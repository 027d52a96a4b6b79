"""TRACE: spends a fixed rollout budget on the prompts and prefixes most likely to give mixed outcomes."""
