"""200 members that share 20,000 partitions: how long the leader of the group takes to assign them, by each assignor.

All members subscribe to all of 20 topics, or each to a half of 200 topics that is its own; without racks, and with
members in three racks and replicas in two of them. Each group is assigned for the first time and once more when a tenth
of the members has left and as many others have come; the longer time counts.
"""

import gc
import random
import time
from collections.abc import Iterator, Mapping

from benchmarks.harness import Row
from rayka.coordinator.assignors.assignors import ASSIGNORS, Assignor
from rayka.coordinator.assignors.subscribers import NO_RACKS, Assignment, RacksByTopic, Subscriber
from rayka.protocol.groups import ConsumerSubscription

MEMBERS, PARTITIONS = 200, 20_000
FEW_TOPICS, MANY_TOPICS = 20, 200
RACKS = ("a", "b", "c")
MOST_S = 2.0


def run(*, quick: bool) -> Iterator[Row]:
    """Processor time, for other programs are no matter of the assignor's."""
    partitions = PARTITIONS // 10 if quick else PARTITIONS
    for topic_count, subscriptions in ((FEW_TOPICS, "equal"), (MANY_TOPICS, "unequal")):
        counts = {f"topic-{number:03}": partitions // topic_count for number in range(topic_count)}
        for racks, where in ((NO_RACKS, ""), (_racks(counts), ", three racks")):
            settings = f"{MEMBERS} members, {partitions:,} partitions, {subscriptions} subscriptions{where}"
            members = _members(counts, has_racks=bool(racks))
            for assignor in ASSIGNORS.values():
                taken_s = _longest_s(assignor, members, counts, racks)
                yield Row.allowed(assignor.name, taken_s, "s", MOST_S, settings=settings)


def _racks(counts: Mapping[str, int]) -> RacksByTopic:
    pairs = (("a", "b"), ("b", "c"), ("a", "c"))
    return {name: tuple(pairs[number % 3] for number in range(count)) for name, count in counts.items()}


def _members(counts: Mapping[str, int], *, has_racks: bool) -> list[Subscriber]:
    """A tenth more than are in the group at once."""
    chance, topics = random.Random(1), tuple(counts)
    found = []
    for number in range(MEMBERS + MEMBERS // 10):
        mine = topics if len(topics) == FEW_TOPICS else tuple(chance.sample(topics, len(topics) // 2))
        rack = chance.choice(RACKS) if has_racks else ""
        found.append(Subscriber(f"member-{number:03}", ConsumerSubscription(mine, rack=rack)))
    return found


def _longest_s(
    assignor: Assignor, members: list[Subscriber], counts: Mapping[str, int], racks: RacksByTopic
) -> float:
    first_s, assignment = _timed(assignor, members[:MEMBERS], counts, racks)
    following = [_claiming(each, assignment) for each in members[-MEMBERS:]]
    return max(first_s, _timed(assignor, following, counts, racks)[0])


def _claiming(member: Subscriber, assignment: Assignment) -> Subscriber:
    topics, rack = member.subscription.topics, member.subscription.rack
    owned = tuple(assignment.get(member.member_id, ()))
    return member._replace(subscription=ConsumerSubscription(topics, owned, 1, rack))


def _timed(
    assignor: Assignor, members: list[Subscriber], counts: Mapping[str, int], racks: RacksByTopic
) -> tuple[float, Assignment]:
    gc.collect()
    began_s = time.process_time()
    assignment = assignor.assign(members, counts, racks)
    return time.process_time() - began_s, assignment
