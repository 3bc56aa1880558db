"""Assignors that mind racks: the numbers of Kafka's `AbstractPartitionAssignorTest`, `RangeAssignorTest` and
`AbstractStickyAssignorTest`, and what holds for any group (E9, KIP-881).
"""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rayka.coordinator.assignors.assignors import ASSIGNORS
from rayka.coordinator.assignors.subscribers import PartitionRacks, Subscriber, is_rack_aware
from rayka.ids import TopicPartition
from rayka.protocol.groups import ConsumerSubscription
from tests.coordinator.assignor_support import TOPICS, expect_valid, groups, owning, topic_counts, unevenness

ABC = ("a", "b", "c")
NONE = ("", "", "")
COUNTS = {"t1": 6, "t2": 7, "t3": 2}
ALL_3 = (("t1", "t2", "t3"),) * 3
UNEQUAL = (("t1", "t2", "t3"), ("t1", "t2", "t3"), ("t1", "t3"))
Group = tuple[list[Subscriber], dict[str, PartitionRacks]]


def parse(text: str) -> tuple[TopicPartition, ...]:
    """`t1-0, t1-3`"""
    pairs = (each.rsplit("-", 1) for each in text.split(", ") if each)
    return tuple(TopicPartition(topic, int(number)) for topic, number in pairs)


def placed(counts: Mapping[str, int], replicas: int, brokers: Sequence[str]) -> dict[str, PartitionRacks]:
    """Each partition's replicas are on the next brokers, and each topic begins where the one before ends."""
    found: dict[str, PartitionRacks] = {}
    first = 0
    for topic, count in counts.items():
        places = [
            {brokers[(first + number + each) % len(brokers)] for each in range(replicas)}
            for number in range(count)
        ]
        found[topic] = tuple(tuple(sorted(each - {""})) for each in places)
        first += count
    return found


def subscribed(
    topics: Sequence[Sequence[str]], racks: Sequence[str], owned: Sequence[str] = ()
) -> list[Subscriber]:
    owned = owned or [""] * len(topics)
    return [
        Subscriber(f"c{index}", ConsumerSubscription(tuple(names), parse(owned[index]), 1, racks[index]))
        for index, names in enumerate(topics)
    ]


def assigned(
    name: str, members: Sequence[Subscriber], counts: Mapping[str, int], racks: Mapping[str, PartitionRacks]
) -> list[str]:
    found = ASSIGNORS[name].assign(members, counts, racks)
    return [
        ", ".join(sorted(f"{each.topic}-{each.partition}" for each in found[member.member_id]))
        for member in members
    ]


def far(
    members: Sequence[Subscriber],
    assignment: Mapping[str, Sequence[TopicPartition]],
    racks: Mapping[str, PartitionRacks],
) -> int:
    """How many partitions have no replica in their reader's rack."""
    return sum(
        each.subscription.rack not in racks[tp.topic][tp.partition]
        for each in members
        if each.subscription.rack
        for tp in assignment[each.member_id]
    )


def expect(
    name: str,
    members: Sequence[Subscriber],
    counts: Mapping[str, int],
    racks: Mapping[str, PartitionRacks],
    expected: Sequence[str],
    far_count: int | None = None,
) -> None:
    assert assigned(name, members, counts, racks) == list(expected)
    if far_count is not None:
        assert far(members, ASSIGNORS[name].assign(members, counts, racks), racks) == far_count


# ---- When ------------------------------------------------------------------------------------------------------------


def test_racks_matter_where_members_and_some_replicas_name_them() -> None:  # E9
    everywhere, some = (ABC,) * 10, tuple((ABC[number % 3],) for number in range(10))
    for members, partitions in [
        ((), ()),
        ((), everywhere),
        (ABC, ()),
        (("d",), everywhere),
        (ABC, everywhere),
        (("a", "b"), everywhere),
        (("a", "d"), everywhere),
        (("d",), some),
        (NONE, some),
        (ABC, ((),) * 10),
    ]:
        assert not is_rack_aware(members, (partitions,))
    for members in (ABC, ("a", "b"), ("a", "d"), ("a", "", "")):
        assert is_rack_aware(members, (some,))


RANGE_ALL = (
    "t1-0, t1-1, t2-0, t2-1, t2-2, t3-0",
    "t1-2, t1-3, t2-3, t2-4, t3-1",
    "t1-4, t1-5, t2-5, t2-6",
)
RANGE_UNEQUAL = (
    "t1-0, t1-1, t2-0, t2-1, t2-2, t2-3, t3-0",
    "t1-2, t1-3, t2-4, t2-5, t2-6, t3-1",
    "t1-4, t1-5",
)
STICKY_ALL = (
    "t1-0, t1-3, t2-0, t2-3, t2-6",
    "t1-1, t1-4, t2-1, t2-4, t3-0",
    "t1-2, t1-5, t2-2, t2-5, t3-1",
)
STICKY_UNEQUAL = (
    "t1-5, t2-0, t2-2, t2-4, t2-6",
    "t1-3, t2-1, t2-3, t2-5, t3-0",
    "t1-0, t1-1, t1-2, t1-4, t3-1",
)
STICKY = ["sticky", "cooperative-sticky"]


@pytest.mark.parametrize(
    ("replicas", "brokers", "members"),
    [
        (3, NONE, ABC),
        (3, ABC, NONE),
        (3, ABC, ABC),
        (4, ("a", "b", "c", "d"), ABC),
        (3, ABC, ("d", "e", "f")),
        (3, ABC, ("", "e", "f")),
        (3, ("a", "b"), ABC),
    ],
)
@pytest.mark.parametrize(
    ("name", "topics", "expected"),
    [
        ("range", ALL_3, RANGE_ALL),
        ("range", UNEQUAL, RANGE_UNEQUAL),
        *((name, ALL_3, STICKY_ALL) for name in STICKY),
        *((name, UNEQUAL, STICKY_UNEQUAL) for name in STICKY),
    ],
)
def test_where_racks_make_no_difference_nothing_is_otherwise(
    name: str,
    topics: Sequence[Sequence[str]],
    expected: Sequence[str],
    replicas: int,
    brokers: Sequence[str],
    members: Sequence[str],
) -> None:  # E9
    expect(name, subscribed(topics, members), COUNTS, placed(COUNTS, replicas, brokers), expected)


def test_round_robin_minds_no_racks() -> None:  # E9
    members = subscribed(ALL_3, ABC)
    for replicas in (1, 2):
        racks = placed(COUNTS, replicas, ABC)
        assert assigned("roundrobin", members, COUNTS, racks) == assigned("roundrobin", members, COUNTS, {})


# ---- Range -----------------------------------------------------------------------------------------------------------

EACH_5 = {"t1": 5, "t2": 5, "t3": 5}
EACH_5_ALL = (
    "t1-0, t1-1, t2-0, t2-1, t3-0, t3-1",
    "t1-2, t1-3, t2-2, t2-3, t3-2, t3-3",
    "t1-4, t2-4, t3-4",
)


@pytest.mark.parametrize(
    ("topics", "counts", "replicas", "expected", "far_count"),
    [
        (
            ALL_3,
            COUNTS,
            1,
            (
                "t1-0, t1-3, t2-0, t2-3, t2-6",
                "t1-1, t1-4, t2-1, t2-4, t3-0",
                "t1-2, t1-5, t2-2, t2-5, t3-1",
            ),
            0,
        ),
        (
            ALL_3,
            COUNTS,
            2,
            (
                "t1-0, t1-2, t2-0, t2-2, t2-3, t3-1",
                "t1-1, t1-3, t2-1, t2-4, t3-0",
                "t1-4, t1-5, t2-5, t2-6",
            ),
            1,
        ),
        (
            UNEQUAL,
            COUNTS,
            1,
            (
                "t1-0, t1-3, t2-0, t2-2, t2-3, t2-6",
                "t1-1, t1-4, t2-1, t2-4, t2-5, t3-0",
                "t1-2, t1-5, t3-1",
            ),
            2,
        ),
        (
            UNEQUAL,
            COUNTS,
            2,
            (
                "t1-0, t1-2, t2-0, t2-2, t2-3, t2-5, t3-1",
                "t1-1, t1-3, t2-1, t2-4, t2-6, t3-0",
                "t1-4, t1-5",
            ),
            0,
        ),
        (ALL_3, EACH_5, 1, EACH_5_ALL, 10),  # aligned topics come before racks
        (ALL_3, EACH_5, 2, EACH_5_ALL, 5),
        (
            UNEQUAL,
            EACH_5,
            1,
            (
                "t1-0, t1-1, t2-0, t2-1, t2-4, t3-0, t3-1",
                "t1-2, t1-3, t2-2, t2-3, t3-2, t3-3",
                "t1-4, t3-4",
            ),
            9,
        ),
        (
            UNEQUAL,
            EACH_5,
            2,
            (
                "t1-2, t2-0, t2-1, t2-3, t3-2",
                "t1-0, t1-3, t2-2, t2-4, t3-0, t3-3",
                "t1-1, t1-4, t3-1, t3-4",
            ),
            0,
        ),
    ],
)
def test_range_gives_partitions_to_members_in_their_racks(
    topics: Sequence[Sequence[str]],
    counts: dict[str, int],
    replicas: int,
    expected: Sequence[str],
    far_count: int,
) -> None:  # E9
    expect("range", subscribed(topics, ABC), counts, placed(counts, replicas, ABC), expected, far_count)


PAIRS = {"t1": 6, "t2": 6, "t3": 2, "t4": 2}
IN_PAIRS = (("t1", "t2"), ("t1", "t2"), ("t3", "t4"), ("t3", "t4"))
ALL_4 = (("t1", "t2", "t3", "t4"),) * 4


@pytest.mark.parametrize(
    ("topics", "replicas", "brokers", "expected", "far_count"),
    [
        (
            IN_PAIRS,
            2,
            "ab",
            (
                "t1-0, t1-1, t1-2, t2-0, t2-1, t2-2",
                "t1-3, t1-4, t1-5, t2-3, t2-4, t2-5",
                "t3-0, t4-0",
                "t3-1, t4-1",
            ),
            0,
        ),
        (
            IN_PAIRS,
            1,
            "ab",
            (
                "t1-0, t1-2, t1-4, t2-0, t2-2, t2-4",
                "t1-1, t1-3, t1-5, t2-1, t2-3, t2-5",
                "t3-1, t4-1",
                "t3-0, t4-0",
            ),
            0,
        ),
        (
            ALL_4,
            2,
            "ab",
            (
                "t1-0, t1-1, t2-0, t2-1, t3-0, t4-0",
                "t1-2, t1-3, t2-2, t2-3, t3-1, t4-1",
                "t1-4, t2-4",
                "t1-5, t2-5",
            ),
            0,
        ),
        (
            ALL_4,
            1,
            "ab",
            (
                "t1-0, t1-2, t2-0, t2-2, t3-0, t4-0",
                "t1-1, t1-3, t2-1, t2-3, t3-1, t4-1",
                "t1-5, t2-5",
                "t1-4, t2-4",
            ),
            0,
        ),
        (
            ALL_4,
            1,
            "abc",
            (
                "t1-0, t1-3, t2-0, t2-3, t3-0, t4-0",
                "t1-1, t1-4, t2-1, t2-4, t3-1, t4-1",
                "t1-2, t2-2",
                "t1-5, t2-5",
            ),
            6,
        ),
    ],
)
def test_range_keeps_aligned_topics_aligned_in_racks(
    topics: Sequence[Sequence[str]], replicas: int, brokers: str, expected: Sequence[str], far_count: int
) -> None:  # E9
    members = subscribed(topics, ("a", "b", "b", "a"))
    expect("range", members, PAIRS, placed(PAIRS, replicas, tuple(brokers)), expected, far_count)


def test_range_aligns_topics_of_each_count_in_racks() -> None:  # E9
    counts = {"t1": 6, "t2": 6, "t3": 2, "t4": 2, "t5": 4, "t6": 4}
    members = subscribed((tuple(counts),) * 3, ABC)
    expected = (
        "t1-0, t1-2, t2-0, t2-2, t3-0, t4-0, t5-1, t6-1",
        "t1-1, t1-3, t2-1, t2-3, t3-1, t4-1, t5-2, t6-2",
        "t1-4, t1-5, t2-4, t2-5, t5-0, t5-3, t6-0, t6-3",
    )
    expect("range", members, counts, placed(counts, 2, ABC), expected, 0)


def test_static_members_keep_their_ranges_in_racks_under_other_member_ids() -> None:  # E7 E9
    counts = {"t1": 5, "t2": 5}
    racks = dict.fromkeys(counts, placed({"t1": 5}, 2, ("a", "b", "c", "a", "b", "c"))["t1"])
    expected = ("t1-0, t1-2, t2-0, t2-2", "t1-1, t1-3, t2-1, t2-3", "t1-4, t2-4")
    for names in (("m1", "m2", "m3"), ("m1", "m5", "m4")):
        members = [
            Subscriber(name, each.subscription, f"i{index}")
            for index, (name, each) in enumerate(
                zip(names, subscribed((tuple(counts),) * 3, ABC), strict=True)
            )
        ]
        expect("range", members, counts, racks, expected)


# ---- Sticky ----------------------------------------------------------------------------------------------------------

OWNED = (
    "t1-0, t1-1, t1-2, t1-3, t1-4",
    "t1-5, t2-0, t2-1, t2-2, t2-3",
    "t2-4, t2-5, t2-6, t3-0, t3-1",
)


@pytest.mark.parametrize("name", STICKY)
@pytest.mark.parametrize(
    ("topics", "replicas", "expected", "far_count"),
    [
        (ALL_3, 1, STICKY_ALL, 0),
        (ALL_3, 2, STICKY_ALL, 0),
        (
            UNEQUAL,
            1,
            (
                "t1-3, t2-0, t2-2, t2-3, t2-6",
                "t1-4, t2-1, t2-4, t2-5, t3-0",
                "t1-0, t1-1, t1-2, t1-5, t3-1",
            ),
            4,
        ),
        (
            UNEQUAL,
            2,
            (
                "t1-3, t2-0, t2-2, t2-5, t2-6",
                "t1-0, t2-1, t2-3, t2-4, t3-0",
                "t1-1, t1-2, t1-4, t1-5, t3-1",
            ),
            0,
        ),
    ],
)
def test_sticky_deals_out_to_members_in_the_racks_of_replicas_and_leaves_it_so(
    name: str, topics: Sequence[Sequence[str]], replicas: int, expected: Sequence[str], far_count: int
) -> None:  # E9
    racks = placed(COUNTS, replicas, ABC)
    for owned in ((), expected):
        expect(name, subscribed(topics, ABC, owned), COUNTS, racks, expected, far_count)


def test_sticky_moves_what_is_far_to_members_near_to_it() -> None:  # E9
    racks = placed(COUNTS, 1, ABC)
    members = subscribed(ALL_3, ABC, OWNED)
    expect("sticky", members, COUNTS, racks, STICKY_ALL, 0)
    first = ("t1-0, t1-3", "t2-1", "t2-5, t3-1")
    expect("cooperative-sticky", members, COUNTS, racks, first, 0)
    expect("cooperative-sticky", subscribed(ALL_3, ABC, first), COUNTS, racks, STICKY_ALL, 0)


def test_sticky_moves_what_is_far_with_different_subscriptions_and_keeps_more_than_kafkas() -> None:  # E9
    racks = placed(COUNTS, 1, ABC)
    members = subscribed(UNEQUAL, ABC, OWNED)
    found = ASSIGNORS["sticky"].assign(members, COUNTS, racks)
    assert [len(each) for each in found.values()] == [5, 5, 5]
    assert far(members, found, racks) == 4
    kept = sum(len({*found[each.member_id]} & {*each.subscription.owned_partitions}) for each in members)
    assert kept > 3  # what Kafka's keeps: t1-3, t2-1, t3-1


def test_a_member_without_a_rack_gets_what_the_others_are_far_from() -> None:  # E9
    members = subscribed((("t",),) * 2, ("a", ""))
    racks: dict[str, PartitionRacks] = {"t": (("b",), ("a",), ("b",), ("a",))}
    assert assigned("sticky", members, {"t": 4}, racks) == ["t-1, t-3", "t-0, t-2"]


# ---- Any group -------------------------------------------------------------------------------------------------------


@st.composite
def racked_groups(draw: st.DrawFn, *, same_topics: bool = False) -> Group:
    """Members in some racks, and partitions with replicas in some, that are there or not."""
    some_rack = st.sampled_from(("", *ABC, "d"))
    members = [
        each._replace(
            subscription=ConsumerSubscription(
                each.subscription.topics,
                each.subscription.owned_partitions,
                each.subscription.generation_id,
                draw(some_rack),
            )
        )
        for each in draw(groups(same_topics=same_topics))
    ]
    counts = draw(topic_counts(largest=7))
    replicas = st.sets(st.sampled_from(ABC), max_size=3).map(lambda each: tuple(sorted(each)))
    racks = {each: tuple(draw(replicas) for _ in range(counts[each])) for each in TOPICS}
    return members, racks


def counts_of(racks: Mapping[str, PartitionRacks]) -> dict[str, int]:
    return {topic: len(partitions) for topic, partitions in racks.items()}


@pytest.mark.parametrize("name", ["range", *STICKY])
@given(racked_groups())
def test_an_assignment_by_racks_is_valid_and_the_same_for_any_order_of_members(
    name: str, group: Group
) -> None:  # E9
    members, racks = group
    counts = counts_of(racks)
    assignment = ASSIGNORS[name].assign(members, counts, racks)
    expect_valid(members, counts, assignment, is_whole=not ASSIGNORS[name].is_cooperative)
    assert ASSIGNORS[name].assign(members[::-1], dict(reversed(counts.items())), racks) == assignment


@given(racked_groups())
def test_sticky_loads_are_as_even_by_racks_as_without(group: Group) -> None:  # E9
    members, racks = group
    counts = counts_of(racks)
    with_racks = ASSIGNORS["sticky"].assign(members, counts, racks)
    assert unevenness(with_racks) == unevenness(ASSIGNORS["sticky"].assign(members, counts))


@given(racked_groups())
def test_range_shares_each_topic_as_evenly_by_racks_as_without(group: Group) -> None:  # E9
    members, racks = group
    counts = counts_of(racks)
    with_racks = ASSIGNORS["range"].assign(members, counts, racks)
    without = ASSIGNORS["range"].assign(members, counts)
    for topic in TOPICS:
        shares = [
            sorted(sum(each.topic == topic for each in held) for held in found.values())
            for found in (with_racks, without)
        ]
        assert shares[0] == shares[1]


@given(racked_groups())
def test_an_assignment_by_racks_stays_as_it_is(group: Group) -> None:  # E9
    members, racks = group
    counts = counts_of(racks)
    assignment = ASSIGNORS["sticky"].assign(members, counts, racks)
    assert ASSIGNORS["sticky"].assign(owning(members, assignment, 3), counts, racks) == assignment


@example(  # were what members hold exchanged while something is free, this group would go on for ever
    (
        [
            Subscriber("m0", ConsumerSubscription(("t0",), rack="b"), "i"),
            Subscriber("m1", ConsumerSubscription(("t0",))),
            Subscriber("m2", ConsumerSubscription((), (TopicPartition("t0", 0),), 0)),
        ],
        {"t0": ((), (), (), ("a",), ("a", "b"))},
    )
)
@given(racked_groups())
def test_cooperative_members_settle_by_racks_in_few_rebalances(group: Group) -> None:  # E9
    members, racks = group
    counts = counts_of(racks)
    for generation_id in range(3, 7):
        assignment = ASSIGNORS["cooperative-sticky"].assign(members, counts, racks)
        is_settled = all(
            {*each.subscription.owned_partitions} <= {*assignment[each.member_id]} for each in members
        )
        members = owning(members, assignment, generation_id)
        if is_settled:  # no member gave up anything, so none joins again
            break
    assert is_settled
    expect_valid(members, counts, assignment)
    assert unevenness(assignment) == unevenness(ASSIGNORS["sticky"].assign(members, counts))


@given(racked_groups(same_topics=True))
def test_no_swap_of_two_partitions_brings_more_of_them_near(group: Group) -> None:  # E9
    members, racks = group
    assignment = ASSIGNORS["sticky"].assign(members, counts_of(racks), racks)
    rack_of = {each.member_id: each.subscription.rack for each in members}
    has_racks = is_rack_aware(rack_of.values(), [racks[each] for each in members[0].subscription.topics])
    held = [(member_id, each) for member_id, partitions in assignment.items() for each in partitions]

    def is_far(member_id: str, tp: TopicPartition) -> bool:
        return rack_of[member_id] != "" and rack_of[member_id] not in racks[tp.topic][tp.partition]

    for index, (one, mine) in enumerate(held):
        for other, its in held[index:]:
            now, swapped = is_far(one, mine) + is_far(other, its), is_far(one, its) + is_far(other, mine)
            assert not has_racks or swapped >= now, (one, mine, other, its)
