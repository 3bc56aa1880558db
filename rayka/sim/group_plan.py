"""What the consumer group of a run looks like: how its members read and commit, and what happens to its topics.

Drawn from the seed by a random of its own, so what else the seed draws stays as it is.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

_SHARE = 0.5  # of the seeds; runs without topics, or with compacted ones, have no group
_DEATHS = 0.25  # of the groups
_PARTITIONS_MAX = 6  # of a topic that grows


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The group of one run. `static_count` members have a `group_instance_id`, the others have none."""

    assignor: str = "range"
    static_count: int = 0
    is_automatic: bool = False  # members commit by themselves, every second
    grows: bool = False  # its topics get more partitions
    has_zombies: bool = False  # members stand still, and a dead one's last commit comes late
    has_death: bool = False  # members do not come and go; one of them dies, and does not come back

    def next_partition_count(self, partition_count: int) -> int:
        """How many partitions a topic gets next; as many as it has when it is large enough."""
        return min(partition_count + 1, max(_PARTITIONS_MAX, partition_count))


def draw_group(seed: int) -> dict[str, Any]:
    """Members, coordinators and the plan; half of the seeds have no members unless these are asked for."""
    random = Random(f"group swarm {seed}")
    members = random.choice((2, 3, 3, 4)) * (random.random() < _SHARE)
    return {
        "members": members,
        "coordinators": random.choice((1, 1, 2)),
        "group": GroupPlan(
            assignor=random.choice(("range", "roundrobin", "sticky", "cooperative-sticky")),
            static_count=random.choice((0, 0, 1, 4)),
            is_automatic=random.random() < 0.5,
            grows=random.random() < 0.5,
            has_zombies=random.random() < 0.5,
            has_death=Random(f"group death {seed}").random() < _DEATHS,
        ),
    }
