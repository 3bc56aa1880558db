"""All partitions, by topic and number, dealt out to the members in turn; a member that does not subscribe to a topic
is passed over. Racks change nothing, as in Kafka: `RoundRobinAssignor` (E9).
"""

from collections.abc import Iterable, Mapping

from rayka.coordinator.assignors.assignor import (
    NO_RACKS,
    Assignment,
    RacksByTopic,
    Subscriber,
    partitions_of,
    ranked,
    subscribers_by_topic,
)


def assign_round_robin(
    members: Iterable[Subscriber],
    partition_counts: Mapping[str, int],
    racks: RacksByTopic = NO_RACKS,
) -> Assignment:
    """The assignment, by member id."""
    order = ranked(members)
    assignment: Assignment = {each.member_id: [] for each in order}
    topics = {each.member_id: frozenset(each.subscription.topics) for each in order}
    turn = 0
    for topic in subscribers_by_topic(order, partition_counts):
        for partition in partitions_of(topic, partition_counts[topic]):
            while topic not in topics[order[turn].member_id]:
                turn = (turn + 1) % len(order)
            assignment[order[turn].member_id].append(partition)
            turn = (turn + 1) % len(order)
    return assignment
