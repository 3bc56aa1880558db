"""For tests, of rayka and of its users: a cluster in this process, and a disk that breaks on request."""

from rayka.testing.in_process_cluster import InProcessCluster, cluster
from rayka.testing.in_process_nodes import InProcessDescription
from rayka.testing.memory_disk import MemoryDisk

__all__ = ["InProcessCluster", "InProcessDescription", "MemoryDisk", "cluster"]
