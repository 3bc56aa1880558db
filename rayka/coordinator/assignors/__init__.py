"""Assignors: pure functions by which the leader of a group assigns partitions to members (E9)."""
