"""Compaction of logs: of each key the newest record stays; a core, which the node drives (F20-F28)."""
