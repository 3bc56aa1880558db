"""The data directories of one broker: locks, logs, checkpoints, syncs, and how failed and full ones are handled."""
