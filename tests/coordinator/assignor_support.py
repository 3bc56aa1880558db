"""Members, subscriptions and assignments in short, as the oracles write them."""

from collections.abc import Mapping
from itertools import product

from hypothesis import strategies as st

from rayka.coordinator.assignors.assignors import ASSIGNORS
from rayka.coordinator.assignors.subscribers import Assignment, Subscriber
from rayka.ids import TopicPartition
from rayka.protocol.groups import ConsumerSubscription

TOPICS = ("t0", "t1", "t2", "t3")


def parse(text: str) -> tuple[TopicPartition, ...]:
    """`t0p1 t2p0`"""
    pairs = (each.rsplit("p", 1) for each in text.split())
    return tuple(TopicPartition(topic, int(number)) for topic, number in pairs)


def member(
    member_id: str, topics: str, owned: str = "", generation_id: int = 1, instance_id: str = ""
) -> Subscriber:
    subscription = ConsumerSubscription(tuple(topics.split()), parse(owned), generation_id)
    return Subscriber(member_id, subscription, instance_id)


def assigned(name: str, members: list[Subscriber], counts: Mapping[str, int]) -> dict[str, str]:
    """The assignment in short."""
    assignment = ASSIGNORS[name].assign(members, counts)
    return {
        member_id: " ".join(f"{each.topic}p{each.partition}" for each in partitions)
        for member_id, partitions in assignment.items()
    }


def owning(
    members: list[Subscriber], assignment: Mapping[str, list[TopicPartition]], generation_id: int
) -> list[Subscriber]:
    """The members as they join the next rebalance; one that had no assignment owns nothing."""
    return [
        each._replace(
            subscription=ConsumerSubscription(
                each.subscription.topics,
                tuple(assignment.get(each.member_id, ())),
                generation_id,
                each.subscription.rack,
            )
        )
        for each in members
    ]


def expect_valid(
    members: list[Subscriber], counts: Mapping[str, int], assignment: Assignment, *, is_whole: bool = True
) -> None:
    """Each partition once (or at most once), and only to a member that subscribes to its topic."""
    topics = {each.member_id: each.subscription.topics for each in members}
    assert assignment.keys() == topics.keys()
    given = [(member_id, each) for member_id, partitions in assignment.items() for each in partitions]
    assert [each for member_id, each in given if each.topic not in topics[member_id]] == []
    partitions = sorted(each for _, each in given)
    assert len(set(partitions)) == len(partitions)
    wanted = {topic for each in members for topic in each.subscription.topics}
    expected = [TopicPartition(name, n) for name in sorted(wanted) for n in range(counts.get(name, 0))]
    assert partitions == expected if is_whole else set(partitions) <= set(expected)


def unevenness(assignment: Mapping[str, list[TopicPartition]]) -> int:
    """The sum of the squares of the loads: the lower, the more even."""
    return sum(len(partitions) ** 2 for partitions in assignment.values())


def least_unevenness(members: list[Subscriber], counts: Mapping[str, int]) -> int:
    """The least sum of squares, found by trying all assignments."""
    choices = [
        [index for index, each in enumerate(members) if topic in each.subscription.topics]
        for topic, count in counts.items()
        for _ in range(count)
    ]
    choices = [each for each in choices if each]
    return min(sum(loads.count(index) ** 2 for index in range(len(members))) for loads in product(*choices))


# ---- Strategies ------------------------------------------------------------------------------------------------------


def topic_counts(largest: int = 9) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({topic: st.integers(0, largest) for topic in TOPICS})


@st.composite
def groups(
    draw: st.DrawFn, *, largest: int = 6, same_topics: bool = False, claims: bool = True
) -> list[Subscriber]:
    """Members with any subscriptions, and with claims of any generation, sensible or not."""
    some_topics = st.lists(st.sampled_from(TOPICS), unique=True, max_size=4)
    shared = draw(some_topics)
    partitions = st.builds(TopicPartition, st.sampled_from((*TOPICS, "gone")), st.integers(0, 10))
    found = []
    for index in range(draw(st.integers(1, largest))):
        topics = shared if same_topics else draw(some_topics)
        owned = draw(st.lists(partitions, max_size=8)) if claims else []
        subscription = ConsumerSubscription(tuple(topics), tuple(owned), draw(st.integers(-1, 2)))
        instance_id = draw(st.sampled_from(("", f"i{9 - index}")))
        found.append(Subscriber(f"m{index}", subscription, instance_id))
    return found
