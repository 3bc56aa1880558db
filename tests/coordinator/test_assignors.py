"""Assignors: Kafka's numbers, and what holds for any group."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.coordinator.assignors.assignors import ASSIGNORS, owners_of
from rayka.coordinator.assignors.subscribers import Subscriber
from rayka.errors import CorruptRecord
from rayka.ids import TopicPartition
from rayka.protocol.groups import (
    ConsumerAssignment,
    ConsumerSubscription,
    decode_member_data,
    encode_member_data,
)
from tests.coordinator.assignor_support import (
    assigned,
    expect_valid,
    groups,
    least_unevenness,
    member,
    owning,
    topic_counts,
    unevenness,
)

EACH_2 = {f"t{number}": 2 for number in range(4)}
ALL_4 = " ".join(EACH_2)
GROWING = {"t0": 1, "t1": 2, "t2": 3}


def three(topics: str = ALL_4) -> list[Subscriber]:
    return [member(each, topics) for each in ("C0", "C1", "C2")]


def different(**owned: str) -> list[Subscriber]:
    topics = {"C0": "t0", "C1": "t0 t1", "C2": "t0 t1 t2"}
    return [member(each, topics[each], owned.get(each, "")) for each in topics]


def numbers(topic: str, first: int, last: int) -> str:
    return " ".join(f"{topic}p{number}" for number in range(first, last + 1))


# ---- Range -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "ranges"), [(10, [(0, 3), (4, 6), (7, 9)]), (11, [(0, 3), (4, 7), (8, 10)])]
)
def test_range_gives_the_first_members_one_more(count: int, ranges: list[tuple[int, int]]) -> None:  # E9
    expected = {f"C{index}": numbers("t0", *each) for index, each in enumerate(ranges)}
    assert assigned("range", three(), {"t0": count}) == expected


def test_range_aligns_topics_with_equal_counts() -> None:  # E9
    found = assigned("range", three(), {"t0": 10, "t1": 10})
    assert found["C1"] == f"{numbers('t0', 4, 6)} {numbers('t1', 4, 6)}"


def test_range_favours_the_first_members_in_every_topic() -> None:  # E9
    two = [member("A", ALL_4), member("B", ALL_4)]
    assert assigned("range", two, {"t0": 3}) == {"A": "t0p0 t0p1", "B": "t0p2"}
    found = assigned("range", two, {"t0": 3, "t1": 3})
    assert [len(each.split()) for each in found.values()] == [4, 2]


def test_static_members_come_first_and_by_their_instances() -> None:  # E7 E9
    members = [member("a", "t0"), member("z", "t0", instance_id="1"), member("b", "t0", instance_id="2")]
    expected = {"z": "t0p0 t0p1", "b": "t0p2", "a": "t0p3"}
    assert assigned("range", members, {"t0": 4}) == expected


# ---- Round robin -----------------------------------------------------------------------------------------------------


def test_round_robin_deals_out_in_turn() -> None:  # E9
    members = [member(each, "t0") for each in ("C1-0", "C1-1", "C2-0", "C2-1")]
    assert assigned("roundrobin", members, {"t0": 10}) == {
        "C1-0": "t0p0 t0p4 t0p8",
        "C1-1": "t0p1 t0p5 t0p9",
        "C2-0": "t0p2 t0p6",
        "C2-1": "t0p3 t0p7",
    }


def test_round_robin_deals_everything_out_anew_when_a_member_leaves() -> None:  # E9
    assert assigned("roundrobin", [three()[0], three()[2]], EACH_2) == {
        "C0": "t0p0 t1p0 t2p0 t3p0",
        "C2": "t0p1 t1p1 t2p1 t3p1",
    }


def test_round_robin_passes_over_members_that_do_not_subscribe() -> None:  # E9
    assert assigned("roundrobin", different(), GROWING) == {
        "C0": "t0p0",
        "C1": "t1p0",
        "C2": "t1p1 t2p0 t2p1 t2p2",
    }
    assert assigned("roundrobin", different()[1:], GROWING) == {
        "C1": "t0p0 t1p1",
        "C2": "t1p0 t2p0 t2p1 t2p2",
    }


# ---- Sticky ----------------------------------------------------------------------------------------------------------

STICKY = ["sticky", "cooperative-sticky"]
FIRST = {"C0": "t0p0 t1p1 t3p0", "C1": "t0p1 t2p0 t3p1", "C2": "t1p0 t2p1"}


@pytest.mark.parametrize("name", STICKY)
def test_sticky_begins_as_round_robin_does(name: str) -> None:  # E9
    assert assigned(name, three(), EACH_2) == FIRST


@pytest.mark.parametrize("name", STICKY)
def test_sticky_moves_only_what_a_member_that_left_had(name: str) -> None:  # E9
    left = [member(each, ALL_4, FIRST[each]) for each in ("C0", "C2")]
    assert assigned(name, left, EACH_2) == {"C0": "t0p0 t1p1 t2p0 t3p0", "C2": "t0p1 t1p0 t2p1 t3p1"}


@pytest.mark.parametrize("name", STICKY)
def test_sticky_with_different_subscriptions_is_as_even_as_it_can_be(name: str) -> None:  # E9
    found = {"C0": "t0p0", "C1": "t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}
    assert assigned(name, different(), GROWING) == found
    left = assigned(name, different(**found)[1:], GROWING)
    assert left == {"C1": "t0p0 t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}


def test_sticky_moves_along_a_chain_where_no_single_move_helps() -> None:  # E9
    members = [
        member("A", "t0", "t0p0 t0p1 t0p2"),
        member("B", "t0 t1", "t1p0 t1p1"),
        member("C", "t1", "t1p2"),
    ]
    found = assigned("sticky", members, {"t0": 3, "t1": 3})
    assert found == {"A": "t0p0 t0p1", "B": "t0p2 t1p0", "C": "t1p1 t1p2"}


def test_the_claim_of_the_newest_generation_wins() -> None:  # E9
    members = [member("A", "t0", "t0p0 t0p1", 4), member("B", "t0", "t0p0 t0p1", 5)]
    assert owners_of(members) == {TopicPartition("t0", 0): "B", TopicPartition("t0", 1): "B"}
    assert assigned("sticky", [*members, member("C", "t0")], {"t0": 3}) == {
        "A": "t0p2",
        "B": "t0p0",
        "C": "t0p1",
    }


def test_two_claims_of_one_generation_cancel_each_other() -> None:  # E9
    members = [member("A", "t0", "t0p0 t0p1", 5), member("B", "t0", "t0p0", 5), member("C", "t0", "t0p0", 4)]
    assert owners_of(members) == {TopicPartition("t0", 1): "A"}


# ---- Cooperative -----------------------------------------------------------------------------------------------------


def test_a_partition_that_moves_is_given_up_first_and_assigned_by_the_next_rebalance() -> None:  # E9
    members = [member("A", "t0", numbers("t0", 0, 3)), member("B", "t0")]
    first = assigned("cooperative-sticky", members, {"t0": 4})
    assert first == {"A": "t0p0 t0p1", "B": ""}
    after = [member("A", "t0", first["A"], 2), member("B", "t0", first["B"], 2)]
    assert assigned("cooperative-sticky", after, {"t0": 4}) == {"A": "t0p0 t0p1", "B": "t0p2 t0p3"}


def test_a_partition_that_two_members_claim_is_assigned_to_neither_yet() -> None:  # E9
    members = [member("A", "t0", "t0p0", 5), member("B", "t0", "t0p0", 5)]
    assert assigned("cooperative-sticky", members, {"t0": 1}) == {"A": "", "B": ""}


def test_an_older_claim_does_not_take_a_partition_from_its_owner() -> None:  # E9
    members = [member("A", "t0", "t0p0", 5), member("B", "t0", "t0p0", 4)]
    assert assigned("cooperative-sticky", members, {"t0": 1}) == {"A": "t0p0", "B": ""}


# ---- Any group -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(groups(), topic_counts())
def test_an_assignment_is_valid_and_the_same_for_any_order_of_members(
    name: str, members: list[Subscriber], counts: dict[str, int]
) -> None:  # E9
    assignment = ASSIGNORS[name].assign(members, counts)
    expect_valid(members, counts, assignment, is_whole=not ASSIGNORS[name].is_cooperative)
    assert ASSIGNORS[name].assign(members[::-1], dict(reversed(counts.items()))) == assignment


@given(groups(largest=4), topic_counts(largest=2))
def test_sticky_loads_are_the_most_even_ones_there_are(
    members: list[Subscriber], counts: dict[str, int]
) -> None:  # E9
    assignment = ASSIGNORS["sticky"].assign(members, counts)
    assert unevenness(assignment) == least_unevenness(members, counts)


@given(groups(largest=12, same_topics=True), topic_counts(largest=20))
def test_with_equal_subscriptions_loads_differ_by_one_at_most_and_nothing_moves_that_need_not(
    members: list[Subscriber], counts: dict[str, int]
) -> None:  # E9
    assignment = ASSIGNORS["sticky"].assign(members, counts)
    loads = [len(each) for each in assignment.values()]
    assert max(loads) - min(loads) <= 1
    topics = members[0].subscription.topics
    owned: dict[str, list[TopicPartition]] = {each.member_id: [] for each in members}
    for partition, owner in owners_of(members).items():
        if partition.topic in topics and partition.partition < counts.get(partition.topic, 0):
            owned[owner].append(partition)
    kept = sum(len(set(owned[each]) & set(assignment[each])) for each in owned)
    assert kept == most_kept([len(each) for each in owned.values()], sum(loads))


def most_kept(owned: list[int], total: int) -> int:
    """How many can stay where they are when the loads are even."""
    least, more = divmod(total, len(owned))
    over = sum(1 for each in owned if each > least)
    return sum(min(each, least) for each in owned) + min(over, more)


@given(groups(), topic_counts())
def test_an_assignment_that_is_even_stays_as_it_is(
    members: list[Subscriber], counts: dict[str, int]
) -> None:  # E9
    assignment = ASSIGNORS["sticky"].assign(members, counts)
    assert ASSIGNORS["sticky"].assign(owning(members, assignment, 3), counts) == assignment


@given(groups(claims=False), topic_counts(), st.lists(st.integers(0, 5), max_size=8))
def test_a_member_that_joins_or_leaves_moves_nothing_between_the_others(
    members: list[Subscriber], counts: dict[str, int], comings_and_goings: list[int]
) -> None:  # E9
    topics = members[0].subscription.topics
    members = [each._replace(subscription=ConsumerSubscription(topics)) for each in members]
    present = {each.member_id: each for each in members}
    before = ASSIGNORS["sticky"].assign(present.values(), counts)
    for generation_id, number in enumerate(comings_and_goings, 1):
        toggled = members[number % len(members)]
        if present.pop(toggled.member_id, None) is None:
            present[toggled.member_id] = toggled
        if not present:
            present[toggled.member_id] = toggled
        joining = owning(list(present.values()), before, generation_id)
        after = ASSIGNORS["sticky"].assign(joining, counts)
        stayed = before.keys() & after.keys()
        owners = {partition: each for each in before for partition in before[each]}
        moved = [
            each for name in sorted(stayed) for each in after[name] if owners.get(each) in stayed - {name}
        ]
        assert moved == []
        before = after


@given(groups(), topic_counts())
def test_cooperative_members_never_read_the_same_partition_and_settle_in_few_rebalances(
    members: list[Subscriber], counts: dict[str, int]
) -> None:  # E9
    assign = ASSIGNORS["cooperative-sticky"].assign
    assignment: Mapping[str, list[TopicPartition]] = {
        each.member_id: list(each.subscription.owned_partitions) for each in members
    }
    for generation_id in range(3, 8):
        following = assign(members, counts)
        owners = owners_of(members)
        for member_id, partitions in following.items():
            others = {each for name in assignment if name != member_id for each in assignment[name]}
            assert [each for each in partitions if each in others and owners.get(each) != member_id] == []
        if following == assignment:
            break
        assignment, members = following, owning(members, following, generation_id)
    assert assignment == ASSIGNORS["sticky"].assign(members, counts)


# ---- What members say ------------------------------------------------------------------------------------------------


def test_subscriptions_and_assignments_survive_the_coordinator() -> None:  # E9
    subscription = member("A", "t0 t1", "t0p1", 7).subscription
    assert decode_member_data(ConsumerSubscription, encode_member_data(subscription)) == subscription
    assignment = ConsumerAssignment((TopicPartition("t0", 1),))
    assert decode_member_data(ConsumerAssignment, encode_member_data(assignment)) == assignment


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x05", b"hello"])
def test_bytes_that_are_no_subscription_are_an_error_that_says_so(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="expected a ConsumerSubscription"):
        decode_member_data(ConsumerSubscription, data)
