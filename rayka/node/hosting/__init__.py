"""Replicated state machines on a node: a shard, the log under it, and the snapshots of its state."""
