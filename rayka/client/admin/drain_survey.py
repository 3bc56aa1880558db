"""One walk over all partitions for a drain planner: what brokers hold, lead and wait for. In slices, for a cluster has
tens of thousands of partitions.
"""

from collections import Counter
from collections.abc import Collection, Generator
from dataclasses import dataclass, field

from rayka.client.admin.drain_steps import Seen
from rayka.ids import NO_NODE, TopicPartition
from rayka.protocol.membership import MetadataPartition

SLICE = 500  # partitions that are looked at before others have their turn

Held = list[tuple[TopicPartition, MetadataPartition]]


@dataclass(slots=True)
class Survey:
    """`staying`: the brokers that serve and whose machines stay; `counts`: of each broker's replicas; `moving_count`:
    of partitions that a broker leads, for others copy nothing; `held`: by each broker whose machine goes; `leading`:
    those of these that lead what another broker that stays could; `coming` and `leaving`: the partitions on them that a
    reassignment gives to a broker, and takes from one.
    """

    staying: Collection[int]
    counts: Counter[int] = field(default_factory=Counter)
    moving_count: int = 0
    held: dict[int, Held] = field(default_factory=dict)
    leading: dict[int, None] = field(default_factory=dict)
    coming: list[tuple[TopicPartition, int]] = field(default_factory=list)
    leaving: list[tuple[TopicPartition, int]] = field(default_factory=list)

    def others_in_sync(self, partition: MetadataPartition, broker_id: int) -> int:
        """How many replicas in sync there are beside that broker whose machines stay."""
        return sum(each != broker_id and each in self.staying for each in partition.isr)


def take_survey(seen: Seen) -> Generator[None, None, Survey]:
    """Looks at every partition once."""
    serving = (
        each.node_id
        for each in seen.cluster.brokers
        if not each.is_fenced and not each.is_in_controlled_shutdown
    )
    survey = Survey(frozenset(each for each in serving if each not in seen.drains))
    survey.held = {each: [] for each in seen.drains}
    looked_at = 0
    for topic in seen.cluster.topics:
        for each in topic.partitions:
            _add(survey, topic.name, each)
            looked_at += 1
            if looked_at % SLICE == 0:
                yield
    return survey


def _add(survey: Survey, topic: str, partition: MetadataPartition) -> None:
    leader_id = partition.leader_id
    survey.moving_count += is_moving(partition) and leader_id != NO_NODE
    if leader_id in survey.held and survey.others_in_sync(partition, leader_id):
        survey.leading[leader_id] = None
    for each in partition.replicas:
        survey.counts[each] += 1
    holders = [each for each in partition.replicas if each in survey.held]
    if holders:
        tp = TopicPartition(topic, partition.partition)
        for each in holders:
            survey.held[each].append((tp, partition))
        survey.coming += [(tp, each) for each in partition.adding_replicas]
        survey.leaving += [(tp, each) for each in partition.removing_replicas]


def is_moving(partition: MetadataPartition) -> bool:
    """Whether a reassignment of it is under way."""
    return bool(partition.adding_replicas or partition.removing_replicas)
