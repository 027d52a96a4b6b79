"""Policy losses for stale data, each in the place of upstream's `PolicyLoss`."""
