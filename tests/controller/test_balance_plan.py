"""Plans of the balancer: what they reach, what they copy, that each step is legal, and that they come to rest."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.controller.planning.balance_plan import MOVES_MAX, Goal, Plan, plan_balance
from rayka.controller.planning.shapes import BrokerShape, PartitionShape
from rayka.ids import TopicPartition
from rayka.protocol.load import DISK_USE_MAX

MB = 1_000_000


def brokers(*broker_ids: int, **changes: Any) -> list[BrokerShape]:
    return [
        BrokerShape(each, **{"rack": f"r{each}", "machine": f"m{each}", **changes}) for each in broker_ids
    ]


def partition(number: int, *replicas: int, size_bytes: int = MB, **changes: Any) -> PartitionShape:
    return PartitionShape(TopicPartition("t", number), replicas, size_bytes, **changes)


def striped(count: int, over: Sequence[int], factor: int = 1, size_bytes: int = MB) -> list[PartitionShape]:
    """Partitions whose replicas take turns on these brokers."""
    return [
        partition(
            number, *(over[(number + place) % len(over)] for place in range(factor)), size_bytes=size_bytes
        )
        for number in range(count)
    ]


def made(
    nodes: Sequence[BrokerShape], partitions: Sequence[PartitionShape], last_goal: Goal = Goal.BYTES_OUT
) -> Plan:
    planning = plan_balance(nodes, partitions, last_goal)
    try:
        next(planning)
        while True:
            planning.send(0)
    except StopIteration as end:
        plan: Plan = end.value
        return plan


def applied(plan: Plan, partitions: Sequence[PartitionShape]) -> list[PartitionShape]:
    after = {move.topic_partition: move.after for move in plan.moves}
    return [each._replace(replicas=after.get(each.topic_partition, each.replicas)) for each in partitions]


def sizes(plan: Plan) -> dict[int, int]:
    return {each.broker_id: each.size_bytes for each in plan.after}


def test_a_balanced_cluster_stays_as_it_is() -> None:
    plan = made(brokers(1, 2, 3), striped(30, (1, 2, 3), 2))
    assert (plan.moves, plan.is_whole) == ((), True)
    assert plan.before == plan.after


def test_an_empty_broker_gets_its_share_and_nothing_else_moves() -> None:
    partitions = striped(40, (1, 2, 3))
    plan = made(brokers(1, 2, 3, 4), partitions)
    assert {move.after for move in plan.moves} == {(4,)}
    assert len(plan.moves) == 10
    assert sum(move.copied_bytes for move in plan.moves) == 10 * MB
    assert sizes(plan) == dict.fromkeys((1, 2, 3, 4), 10 * MB)
    assert all(move.goal is Goal.SIZE for move in plan.moves)


def test_empty_partitions_are_spread_too_and_shown_as_empty_as_they_are() -> None:
    plan = made(brokers(1, 2), striped(10, (1,), size_bytes=0))
    assert {each.broker_id: each.replica_count for each in plan.after} == {1: 5, 2: 5}
    assert sizes(plan) == {1: 0, 2: 0}
    assert all(move.copied_bytes == 0 for move in plan.moves)


def test_one_large_partition_does_not_go_to_and_fro() -> None:
    assert made(brokers(1, 2), [partition(0, 1, size_bytes=MB)]).moves == ()


def test_replicas_of_one_rack_go_apart_when_there_is_another() -> None:
    nodes = [*brokers(1, 2, rack="a"), *brokers(3, rack="b")]
    plan = made(nodes, [partition(0, 1, 2), partition(1, 1, 3)])
    (move,) = (each for each in plan.moves if each.goal is Goal.SPREAD)
    assert set(move.after) in ({1, 3}, {2, 3})


def test_for_the_sake_of_racks_no_disk_is_filled() -> None:
    """The only broker of a rack gets what it has room for, and the other partitions stay in one rack."""
    small = brokers(4, rack="b", capacity_bytes=10 * MB)
    nodes = [*brokers(1, 2, 3, rack="a", capacity_bytes=100 * MB), *small]
    partitions = striped(60, (1, 2, 3), 2, size_bytes=2 * MB)
    plan = made(nodes, partitions)
    assert sizes(plan)[4] == 6 * MB
    assert made(nodes, applied(plan, partitions)).moves == ()


def test_no_move_puts_two_replicas_into_one_rack() -> None:
    nodes = [*brokers(1, 2, rack="a"), *brokers(3, 4, rack="b")]
    partitions = [partition(number, 1, 3) for number in range(20)]
    for move in made(nodes, partitions).moves:
        assert len({"a" if each < 3 else "b" for each in move.after}) == 2


def test_a_disk_that_is_too_full_is_relieved_first() -> None:
    nodes = [
        *brokers(1, capacity_bytes=10 * MB),
        *brokers(2, 3, capacity_bytes=11 * MB),
    ]
    partitions = [*(partition(each, 1) for each in range(9)), *(partition(each, 2) for each in range(9, 17))]
    plan = made(nodes, partitions)
    assert plan.moves[0].goal is Goal.CAPACITY
    assert sizes(plan)[1] <= DISK_USE_MAX * 10 * MB


def test_a_disk_below_80_percent_is_left_as_it_is_and_one_above_is_brought_to_75() -> None:
    nodes = brokers(1, 2, 3, capacity_bytes=100 * MB)
    others = [*striped(70, (2,)), *(partition(each, 3) for each in range(200, 270))]
    below = [*others, *(partition(each, 1) for each in range(300, 380))]
    above = [*below, partition(400, 1)]
    made_below, made_above = (made(nodes, each, Goal.CAPACITY) for each in (below, above))
    assert made_below.moves == ()
    assert (sizes(made_above)[1], len(made_above.moves)) == (75 * MB, 6)


def test_disks_of_very_different_sizes_get_shares_in_proportion() -> None:
    nodes = [*brokers(1, capacity_bytes=100 * MB), *brokers(2, capacity_bytes=300 * MB)]
    assert sizes(made(nodes, striped(40, (1,)))) == {1: 10 * MB, 2: 30 * MB}


def test_brokers_that_take_no_replicas_are_left_alone() -> None:
    nodes = [*brokers(1, 2), *brokers(3, takes_replicas=False)]
    plan = made(nodes, striped(12, (1, 3)))
    assert sizes(plan) == {1: 3 * MB, 2: 3 * MB, 3: 6 * MB}


def test_what_is_not_movable_counts_and_stays() -> None:
    partitions = [
        partition(0, 1, size_bytes=4 * MB, is_movable=False),
        *(partition(each, 2) for each in range(1, 5)),
    ]
    assert made(brokers(1, 2), partitions).moves == ()
    assert made(brokers(1, 2, 3), partitions[:1]).moves == ()


def test_leaders_are_evened_by_another_order_that_copies_nothing() -> None:
    partitions = [partition(number, 1, 2) for number in range(10)]
    plan = made(brokers(1, 2), partitions)
    assert [each.leader_count for each in plan.after] == [5, 5] or [
        each.leader_count for each in plan.after
    ] == [6, 4]
    assert all((move.after, move.copied_bytes, move.goal) == ((2, 1), 0, Goal.LEADERS) for move in plan.moves)


def test_readers_are_spread_over_the_leaders() -> None:
    partitions = [
        partition(number, *((1, 2) if number % 2 else (2, 1)), bytes_out=5 * MB if number % 2 else 0)
        for number in range(40)
    ]
    plan = made(brokers(1, 2), partitions)
    before, after = ([each.bytes_out for each in shares] for shares in (plan.before, plan.after))
    assert max(after) - min(after) < max(before) - min(before)
    assert all(move.goal is Goal.BYTES_OUT and move.copied_bytes == 0 for move in plan.moves)


def test_writers_are_spread_where_bytes_stay_even() -> None:
    busy = [partition(number, 1, size_bytes=MB // 10, bytes_in=2 * MB) for number in range(6)]
    rest = [partition(number, 1 if number < 16 else 2) for number in range(6, 27)]
    plan = made(brokers(1, 2), [*busy, *rest])
    after = [each.bytes_in for each in plan.after]
    assert max(after) <= 8 * MB
    assert max(sizes(plan).values()) <= 1.1 * sum(sizes(plan).values()) / 2


def test_a_plan_is_bounded_and_says_that_it_is_not_whole() -> None:
    partitions = striped(4 * MOVES_MAX, (1,))
    plan = made(brokers(1, 2), partitions)
    assert (len(plan.moves), plan.is_whole) == (MOVES_MAX, False)
    assert made(brokers(1, 2), applied(plan, partitions)).is_whole


def test_the_moves_of_a_goal_come_by_gain_for_each_byte() -> None:
    partitions = [partition(each, 1, size_bytes=(each + 1) * MB) for each in range(12)]
    moves = made(brokers(1, 2), partitions).moves
    assert [move.goal for move in moves] == sorted(move.goal for move in moves)
    assert moves[0].copied_bytes >= moves[-1].copied_bytes  # the fullest broker gains most at the begin


# ---- Whatever the cluster ----


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[BrokerShape], list[PartitionShape]]:
    count = draw(st.integers(2, 7))
    racks = draw(st.integers(1, 4))
    nodes = [
        BrokerShape(
            each, f"r{rack}", f"m{rack}-{draw(st.integers(0, 1))}", draw(st.integers(0, 9)) > 0,
            draw(st.sampled_from((0, 12 * MB, 40 * MB, 200 * MB))),
        )
        for each in range(1, count + 1)
        for rack in (draw(st.integers(1, racks)),)
    ]  # fmt: skip
    factor = draw(st.integers(1, min(3, count)))
    choice = st.lists(st.integers(1, count), min_size=factor, max_size=factor, unique=True)
    largest = draw(st.sampled_from((8 * MB, 60 * MB)))  # of the first: it may be above any broker's share
    partitions = [
        partition(
            number, *draw(choice), size_bytes=draw(st.integers(0, 8 * MB if number else largest)),
            bytes_in=draw(st.integers(0, 3 * MB)), bytes_out=draw(st.integers(0, 3 * MB)),
            is_movable=draw(st.integers(0, 9)) > 0,
        )
        for number in range(draw(st.integers(0, 40)))
    ]  # fmt: skip
    return nodes, partitions


@settings(max_examples=150, deadline=None)
@given(clusters(), st.sampled_from((Goal.CAPACITY, Goal.LEADERS, Goal.BYTES_OUT)))
def test_every_move_is_legal_and_a_plan_that_was_carried_out_leads_to_an_empty_one(
    found: tuple[list[BrokerShape], list[PartitionShape]], last_goal: Goal
) -> None:
    nodes, partitions = found
    shape = {each.broker_id: each for each in nodes}
    plan = made(nodes, partitions, last_goal)
    movable = {each.topic_partition for each in partitions if each.is_movable}
    for move in plan.moves:
        assert move.topic_partition in movable
        assert len(set(move.after)) == len(move.after) == len(move.before)
        assert all(shape[each].takes_replicas for each in move.after if each not in move.before)
        for places in (
            lambda each: shape[each].rack,
            lambda each: (shape[each].rack, shape[each].machine),
        ):
            assert len(set(map(places, move.after))) >= len(set(map(places, move.before)))
    assert plan.is_whole
    assert made(nodes, applied(plan, partitions), last_goal).moves == ()


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_no_plan_fills_a_disk_above_80_percent(
    found: tuple[list[BrokerShape], list[PartitionShape]],
) -> None:
    """Whatever the goal; a disk that is above that already gets nothing more."""
    nodes, partitions = found
    plan = made(nodes, partitions)
    for node, before, after in zip(nodes, plan.before, plan.after, strict=True):
        bound = DISK_USE_MAX * node.capacity_bytes or float("inf")
        assert after.size_bytes <= max(bound, before.size_bytes)
        assert (
            before.size_bytes <= bound
            or not any(
                node.broker_id in move.after and node.broker_id not in move.before for move in plan.moves
            )
            or after.size_bytes <= bound
        )


@given(st.integers(0, 200), st.integers(0, 200), st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_no_more_goes_to_brokers_of_one_machine_than_its_disks_may_have_free(
    free_mb: int, held_mb: int, sizes_mb: list[int]
) -> None:
    """They may share one: what each is given counts for all, and what one gives away is not counted for another."""
    shared = {"machine": "m", "rack": "b", "free_bytes": free_mb * MB, "reported_bytes": held_mb * MB}
    nodes = [*brokers(1, rack="a"), *brokers(2, 3, **shared)]
    partitions = [
        partition(0, 2, size_bytes=held_mb * MB, is_movable=False),
        partition(1, 3, size_bytes=held_mb * MB, is_movable=False),
        *(partition(number, 1, size_bytes=size * MB) for number, size in enumerate(sizes_mb, 2)),
    ]
    plan = made(nodes, partitions)
    given_bytes = sum(move.copied_bytes for move in plan.moves if move.after[0] != 1)
    assert given_bytes <= max(0, free_mb * MB)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 3), st.integers(1, 20))
def test_a_new_broker_costs_no_more_than_a_tenth_above_the_least(old: int, factor: int, each: int) -> None:
    factor, count = min(factor, old), each * old
    partitions = striped(count, tuple(range(1, old + 1)), factor)
    plan = made(brokers(*range(1, old + 2)), partitions)
    copied = Counter(move.copied_bytes for move in plan.moves)
    copied_bytes = sum(size * times for size, times in copied.items())
    share_bytes = count * factor * MB / (old + 1)
    assert copied_bytes <= max(1.1 * share_bytes, MB)
    assert max(sizes(plan).values()) <= max(1.1 * share_bytes, share_bytes + MB)
