"""Plans that make lost replicas anew: legal whatever is lost, on as many racks as there can be, and with room."""

from collections import Counter
from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from rayka.controller.planning.balance_plan import MOVES_MAX, Goal, Move
from rayka.controller.planning.replacement_plan import Loss, plan_healing
from rayka.controller.planning.shapes import BrokerShape, PartitionShape
from rayka.ids import TopicPartition
from rayka.protocol.load import DISK_USE_MAX

MB = 1_000_000


def made(
    nodes: list[BrokerShape], partitions: list[PartitionShape], gone: set[int], awaited: Collection[int] = ()
) -> tuple[Move, ...]:
    losses = {
        each.topic_partition: Loss(
            tuple(lost), len(each.replicas) - len(lost), tuple(each for each in lost if each in awaited)
        )
        for each in partitions
        if (lost := [broker_id for broker_id in each.replicas if broker_id in gone])
    }
    planning = plan_healing(nodes, partitions, losses)
    try:
        next(planning)
        while True:
            planning.send(0)
    except StopIteration as end:
        moves: tuple[Move, ...] = end.value
        return moves


def test_what_a_broker_held_is_spread_evenly_over_the_others() -> None:
    nodes = [BrokerShape(each, takes_replicas=each != 1) for each in range(1, 6)]
    partitions = [PartitionShape(TopicPartition("t", each), (1,), MB) for each in range(40)]
    moves = made(nodes, partitions, {1})
    assert Counter(each.after for each in moves) == {(2,): 10, (3,): 10, (4,): 10, (5,): 10}
    assert {(each.goal, each.copied_bytes) for each in moves} == {(Goal.REPLACEMENT, MB)}


def test_brokers_of_one_machine_are_given_no_more_than_its_disk_has_free() -> None:
    """As by a drain: they may share the disk, so what one of them is given counts for all."""
    gone = BrokerShape(1, "a", "m1", takes_replicas=False)
    shared = [BrokerShape(each, "b", "m2", reported_bytes=0, free_bytes=10 * MB) for each in (2, 3)]
    partitions = [PartitionShape(TopicPartition("t", each), (1,), 3 * MB) for each in range(9)]
    assert Counter(each.after for each in made([gone, *shared], partitions, {1})).total() == 3


def test_a_plan_is_bounded() -> None:
    nodes = [BrokerShape(1, takes_replicas=False), BrokerShape(2)]
    partitions = [PartitionShape(TopicPartition("t", each), (1,)) for each in range(MOVES_MAX + 5)]
    assert len(made(nodes, partitions, {1})) == MOVES_MAX


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[BrokerShape], list[PartitionShape], set[int]]:
    ids = range(1, draw(st.integers(2, 7)) + 1)
    gone = draw(st.sets(st.sampled_from(ids), min_size=1, max_size=2))
    nodes = [
        BrokerShape(
            each,
            f"r{draw(st.integers(1, 3))}",
            f"m{draw(st.integers(1, 3))}",
            takes_replicas=each not in gone and draw(st.integers(0, 5)) > 0,
            capacity_bytes=draw(st.sampled_from((0, 0, 10 * MB, 100 * MB))),
        )
        for each in ids
    ]
    partitions = [
        PartitionShape(
            TopicPartition("t", number),
            tuple(draw(st.lists(st.sampled_from(ids), min_size=1, max_size=3, unique=True))),
            draw(st.integers(0, 5 * MB)),
        )
        for number in range(draw(st.integers(1, 12)))
    ]
    return nodes, partitions, gone


@given(clusters(), st.data())
def test_no_other_replica_is_replaced_before_those_that_a_reassignment_waits_for(
    drawn: tuple[list[BrokerShape], list[PartitionShape], set[int]], data: st.DataObject
) -> None:
    nodes, partitions, gone = drawn
    awaited = data.draw(st.sets(st.sampled_from(sorted(gone))))
    for move in made(nodes, partitions, gone, awaited):
        left = {old for old, new in zip(move.before, move.after, strict=True) if old == new and old in gone}
        replaced = {*move.before} & gone - left
        assert not left & awaited or replaced <= awaited


@given(clusters())
def test_every_plan_is_legal(drawn: tuple[list[BrokerShape], list[PartitionShape], set[int]]) -> None:
    nodes, partitions, gone = drawn
    shapes = {each.broker_id: each for each in nodes}
    held = Counter[int]()
    for each in partitions:
        held.update(dict.fromkeys(each.replicas, max(each.size_bytes, 4_096)))
    for move in made(nodes, partitions, gone):
        size_bytes = next(
            max(each.size_bytes, 4_096) for each in partitions if each.topic_partition == move.topic_partition
        )
        assert len(set(move.after)) == len(move.after) == len(move.before)
        for old, new in zip(move.before, move.after, strict=True):
            assert old == new or old in gone, "only what is gone is replaced, in its place"
            if old != new:
                held[new] += size_bytes
                capacity = shapes[new].capacity_bytes
                assert shapes[new].takes_replicas
                assert capacity == 0 or held[new] <= DISK_USE_MAX * capacity
                others = [each for each in move.after if each != new]
                assert _racks(shapes, (*others, new)) == max(
                    _racks(shapes, (*others, each.broker_id))
                    for each in nodes
                    if (each.takes_replicas and each.broker_id not in move.before + move.after)
                    or each.broker_id == new
                ) or any(each.capacity_bytes for each in nodes)


def _racks(shapes: dict[int, BrokerShape], replicas: tuple[int, ...]) -> int:
    return len({shapes[each].rack for each in replicas})
