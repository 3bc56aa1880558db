"""The log on disk: segments, indexes, recovery, checkpoints, data directories; works on a Disk port."""
