"""Where the replicas of a broker go that is emptied: racks, roles, even counts, and disks below 80 %; from a machine
that goes, what can be copied in time, and where it must be, on fuller disks.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rayka.controller.planning.replacement_plan import (
    BrokerDrainPlan,
    DrainPlans,
    ReplicaDeparture,
    plan_drains,
)
from rayka.controller.planning.shapes import BrokerShape, PartitionShape
from rayka.ids import TopicPartition
from rayka.protocol.load import DISK_USE_MAX

MB = 1_000_000
INTERNAL = "__consumer_offsets"


def broker(broker_id: int, held: int = 0, free: float = float("inf"), **changes: Any) -> BrokerShape:
    """Its disks hold and have free so many MB; capacity is known where both are."""
    capacity = 0 if free == float("inf") else (held + free) * MB
    fields: dict[str, Any] = {
        "rack": "",
        "machine": f"m{broker_id}",
        "takes_internal": changes.get("takes_replicas", True),
        "capacity_bytes": capacity,
        "reported_bytes": held * MB,
        "free_bytes": free * MB,
    }
    return BrokerShape(broker_id, **(fields | changes))


def coordinator(broker_id: int, **changes: Any) -> BrokerShape:
    own = {"takes_replicas": False, "takes_internal": True, "is_coordinator": True}
    return broker(broker_id, **(own | changes))


def partition(number: int, *replicas: int, size: int = 0, topic: str = "t") -> PartitionShape:
    return PartitionShape(TopicPartition(topic, number), replicas, size * MB, is_movable=topic != INTERNAL)


def filler(broker_id: int, size: int, count: int = 1) -> list[PartitionShape]:
    """What the broker holds already."""
    return [partition(each, broker_id, size=size, topic=f"of-{broker_id}") for each in range(count)]


def plans(
    brokers: Iterable[BrokerShape],
    partitions: Iterable[PartitionShape],
    copyable_bytes: Mapping[int, float] | None = None,
    **departure: Any,
) -> DrainPlans:
    """Broker 1 is emptied."""
    shapes = list(partitions)
    departures = {
        each.topic_partition: ReplicaDeparture(1, 0, **departure) for each in shapes if 1 in each.replicas
    }
    planning = plan_drains(brokers, shapes, departures, copyable_bytes or {})
    while True:
        try:
            next(planning)
        except StopIteration as end:
            found: DrainPlans = end.value
            return found


def plan(*arguments: Any, **options: Any) -> BrokerDrainPlan:
    return plans(*arguments, **options).by_broker.get(1, BrokerDrainPlan([], []))


def drained(*arguments: Any, **options: Any) -> dict[str, tuple[int, ...]]:
    return {repr(each.topic_partition): each.after for each in plan(*arguments, **options).moves}


GOING = {"is_smallest_first": True, "may_fill": True}


# ---- Brokers, racks and roles ----------------------------------------------------------------------------------------


def test_the_broker_with_the_fewest_replicas_takes_the_place_in_the_order() -> None:
    brokers = [broker(1), broker(2), broker(3), broker(4)]
    held = [
        *(partition(0, 1, 2, 3), partition(1, 2, 1, 3)),
        *(partition(0, 3, 2, topic="u"), partition(1, 1, 3, topic="u")),
        *filler(2, 0, 2),
    ]
    assert drained(brokers, held) == {"t-0": (4, 2, 3), "t-1": (2, 4, 3), "u-1": (4, 3)}


def test_what_the_plan_gives_away_counts() -> None:
    held = [partition(each, 1) for each in range(4)]
    assert drained([broker(1), broker(2), broker(3)], held) == {
        "t-0": (2,), "t-1": (3,), "t-2": (2,), "t-3": (3,),
    }  # fmt: skip


def test_a_rack_without_a_replica_comes_first() -> None:
    racks = {1: "x", 2: "y", 3: "y", 4: "x"}
    brokers = [broker(each, rack=rack) for each, rack in racks.items()]
    assert drained(brokers, [partition(0, 1, 2), *filler(4, 0, 9)]) == {"t-0": (4, 2)}


def test_brokers_that_take_nothing_get_nothing() -> None:
    brokers = [broker(1), broker(2, takes_replicas=False), broker(3)]
    assert drained(brokers, [partition(0, 1), *filler(3, 0, 9)]) == {"t-0": (3,)}


def test_a_broker_is_drained_to_brokers_and_of_internal_topics_to_coordinators_first() -> None:
    brokers = [*(broker(each) for each in (1, 2, 3)), coordinator(1001), coordinator(1002)]
    held = [
        partition(0, 1, 2),
        partition(0, 1001, 1, 2, topic=INTERNAL),
        partition(1, 1001, 1002, 1, topic=INTERNAL),
        *filler(2, 0),
    ]
    assert drained(brokers, held) == {
        "t-0": (3, 2),
        f"{INTERNAL}-0": (1001, 1002, 2),
        f"{INTERNAL}-1": (1001, 1002, 3),
    }


def test_brokers_take_over_from_the_last_coordinator_that_is_drained_and_do_not_come_first() -> None:
    brokers = [coordinator(1), broker(2), broker(3), coordinator(1002, takes_internal=True)]
    held = [partition(0, 1, 1002, 3, topic=INTERNAL), partition(1, 1, 2, 3, topic=INTERNAL)]
    assert drained(brokers, held) == {
        f"{INTERNAL}-0": (1002, 2, 3),
        f"{INTERNAL}-1": (1002, 2, 3),
    }


def test_a_replica_that_finds_no_other_broker_stays_and_says_who_could_hold_it() -> None:
    found = plan([broker(each) for each in (1, 2, 3)], [partition(0, 1, 2, 3), partition(1, 1)])
    assert [each.after for each in found.moves] == [(2,)]
    (homeless,) = found.homeless
    assert (homeless.able, homeless.replica_count, homeless.is_crowded) == ((2, 3), 3, False)


# ---- Room ------------------------------------------------------------------------------------------------------------


def test_a_broker_whose_disks_would_be_above_the_bound_is_passed_over() -> None:
    brokers = [broker(1), broker(2, 75, 25), broker(3, 10, 90)]
    others = [*filler(2, 75), *filler(3, 1, 10)]
    assert drained(brokers, [partition(0, 1, size=6), *others]) == {"t-0": (3,)}
    assert drained(brokers, [partition(0, 1, size=4), *others]) == {"t-0": (2,)}


def test_the_largest_replica_is_given_a_place_first() -> None:
    held = [partition(0, 1, size=10), partition(1, 1, size=40), *filler(2, 0, 2), *filler(3, 60)]
    found = drained([broker(1), broker(2, 0, 100), broker(3, 60, 40)], held)
    assert list(found.items()) == [("t-1", (2,)), ("t-0", (3,))]


def test_brokers_of_one_machine_may_share_a_disk_of_which_only_what_is_free_is_known() -> None:
    brokers = [
        broker(each, held, 60, machine="here", capacity_bytes=0) for each, held in ((1, 40), (2, 90), (3, 90))
    ]
    others = [*filler(2, 90), *filler(3, 90)]
    assert len(drained(brokers, [*(partition(each, 1, size=20) for each in (0, 1)), *others])) == 2
    crowded = plan(brokers, [*(partition(each, 1, size=31) for each in (0, 1)), *others])
    assert [each.is_crowded for each in crowded.homeless] == [True]


def test_a_broker_that_has_reported_nothing_counts_as_having_room() -> None:
    assert drained([broker(1), broker(2)], [partition(0, 1, size=10**9)]) == {"t-0": (2,)}


@given(
    st.lists(st.integers(0, 60), max_size=12),
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=4),
)
def test_no_plan_fills_a_disk_above_the_bound(sizes: list[int], room: list[tuple[int, int]]) -> None:
    brokers = [broker(1), *(broker(each, *one) for each, one in enumerate(room, 2))]
    others = [each for number, (held, _) in enumerate(room, 2) for each in filler(number, held)]
    found = plan(brokers, [*_of_one(sizes), *others])
    assert len(found.moves) + len(found.homeless) == len(sizes)
    for number, (held, free) in enumerate(room, 2):
        given_to = [sizes[each.topic_partition.partition] for each in found.moves if each.after == (number,)]
        assert not given_to or held + sum(given_to) < (held + free) * DISK_USE_MAX + 1


def _of_one(sizes: list[int]) -> list[PartitionShape]:
    return [partition(number, 1, size=size) for number, size in enumerate(sizes)]


# ---- A machine that goes ---------------------------------------------------------------------------------------------


def test_those_come_first_that_fewest_others_hold_then_small_ones() -> None:
    shapes = [partition(0, 2, 3, 1, size=1), partition(1, 1, size=3), partition(2, 2, 1, size=2)]
    departures = {
        each.topic_partition: ReplicaDeparture(1, 0, len(each.replicas) - 1, **GOING)  # type: ignore[arg-type]
        for each in shapes
    }
    planning = plan_drains([broker(each) for each in (1, 2, 3, 4)], shapes, departures, {})
    found: Any = None
    while found is None:
        try:
            next(planning)
        except StopIteration as end:
            found = end.value
    assert [each.topic_partition.partition for each in found.by_broker[1].moves] == [1, 2, 0]


def test_what_cannot_be_copied_before_the_machine_goes_is_not_moved() -> None:
    held = [partition(each, 2, 1, size=size) for each, size in enumerate((40, 20, 30))]
    found = plan([broker(1), broker(2), broker(3)], held, {1: 55 * MB}, **GOING)
    assert [each.topic_partition.partition for each in found.moves] == [1, 2]
    assert (found.moved_bytes, found.late_count) == (50 * MB, 1)


def test_a_disk_is_filled_above_the_bound_only_where_it_must() -> None:
    held = [partition(0, 2, 1, size=5), *filler(3, 79), *filler(4, 2, 5)]
    brokers = [broker(1), broker(2), broker(3, 79, 21)]
    assert drained([*brokers, broker(4, 10, 90)], held, **GOING) == {"t-0": (2, 4)}
    assert drained(brokers, held[:2], **GOING) == {"t-0": (2, 3)}
    assert drained(brokers, held[:2]) == {}


def test_nothing_is_copied_to_a_disk_that_it_would_fill() -> None:
    held = [partition(0, 2, 1, size=5), partition(1, 2, 1, size=6), *filler(3, 90)]
    found = plan([broker(1), broker(2), broker(3, 90, 10)], held, **GOING)
    assert [each.after for each in found.moves] == [(2, 3)]
    assert [each.is_crowded for each in found.homeless] == [True]


def test_what_is_on_its_way_to_a_disk_takes_of_its_room() -> None:
    """A reassignment counts with its target."""
    moving, waiting = partition(0, 2, 3, size=5), partition(1, 2, 1, size=5)
    brokers = [broker(1), broker(2), broker(3, 90, 10)]
    assert drained(brokers, [moving, waiting, *filler(3, 90)], **GOING) == {}
    assert drained([*brokers[:2], broker(3, 90, 11)], [moving, waiting, *filler(3, 90)], **GOING) == {
        "t-1": (2, 3)
    }


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=4),
)
def test_from_a_machine_that_goes_no_disk_is_filled_up_and_nothing_stays_that_fits(
    sizes: list[int], room: list[tuple[int, int]]
) -> None:
    brokers = [broker(1), *(broker(each, *one) for each, one in enumerate(room, 2))]
    others = [each for number, (held, _) in enumerate(room, 2) for each in filler(number, held)]
    found = plan(brokers, [*_of_one(sizes), *others], **GOING)
    given_to = {
        number: sum(sizes[each.topic_partition.partition] for each in found.moves if each.after == (number,))
        for number in range(2, len(room) + 2)
    }
    left = [each.size_bytes // MB for each in found.homeless]
    for number, (_, free) in enumerate(room, 2):
        assert given_to[number] < free or not given_to[number]
        assert all(each >= free - given_to[number] for each in left)
