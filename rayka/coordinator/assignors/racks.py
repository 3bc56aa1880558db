"""When an assignor minds racks: where members and replicas name some, and not every rack has a replica of everything.

A reader in a rack of its partition's replicas need not read from another one (KIP-392). Kafka:
`AbstractPartitionAssignor.useRackAwareAssignment`, KIP-881 (E9).
"""

from collections.abc import Iterable

from rayka.coordinator.assignors.assignor import PartitionRacks


def minds_racks(member_racks: Iterable[str], topics: Iterable[PartitionRacks]) -> bool:
    """Whether it makes a difference which member reads which of these topics' partitions."""
    named = {rack: None for rack in member_racks if rack}
    if not named:
        return False
    found = {frozenset(racks) for partitions in topics for racks in partitions}
    union = frozenset[str]().union(*found)
    return any(rack in union for rack in named) and found != {union}
