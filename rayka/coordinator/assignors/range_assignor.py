"""Each topic on its own, in ranges: the first members get one partition more where the count does not divide evenly.

Topics with the same count and the same subscribers are aligned, so that partition n of one and of the other have the
same reader. Kafka: `RangeAssignor` (E9).
"""

from collections.abc import Iterable, Mapping

from rayka.coordinator.assignors.assignor import (
    Assignment,
    Subscriber,
    partitions_of,
    ranked,
    subscribers_by_topic,
)


def assign_range(members: Iterable[Subscriber], partition_counts: Mapping[str, int]) -> Assignment:
    """The assignment, by member id."""
    order = ranked(members)
    assignment: Assignment = {each.member_id: [] for each in order}
    for topic, subscribers in subscribers_by_topic(order, partition_counts).items():
        partitions = partitions_of(topic, partition_counts[topic])
        least, more = divmod(len(partitions), len(subscribers))
        begin = 0
        for index, member_id in enumerate(subscribers):
            end = begin + least + (index < more)
            assignment[member_id] += partitions[begin:end]
            begin = end
    return assignment
