"""PACE: control of staleness in an asynchronous pipeline, by a pool of finished trajectory groups."""
