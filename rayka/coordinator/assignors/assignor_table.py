"""The assignors by name, as a consumer's `partition_assignment_strategy` lists them. Kafka: `ConsumerPartitionAssignor`
and its `RebalanceProtocol` (E9).
"""

from dataclasses import dataclass

from rayka.coordinator.assignors.assignor import AssignFunction
from rayka.coordinator.assignors.range_assignor import assign_range, assign_round_robin
from rayka.coordinator.assignors.sticky_assignor import assign_cooperative_sticky, assign_sticky


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor with its name and protocol."""

    name: str
    assign: AssignFunction
    # Members keep reading during a rebalance, and give up only the partitions that another member gets.
    is_cooperative: bool = False


ASSIGNORS: dict[str, Assignor] = {
    each.name: each
    for each in (
        Assignor("range", assign_range),
        Assignor("roundrobin", assign_round_robin),
        Assignor("sticky", assign_sticky),
        Assignor("cooperative-sticky", assign_cooperative_sticky, is_cooperative=True),
    )
}
