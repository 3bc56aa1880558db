"""Replicas of a broker that is emptied go where disks stay below 80 % of what they can hold, the balancer's rule; and
from a machine that goes, where they must, as far as there is room at all.
"""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.client.admin.admin_partition_results import ReplicaLogInfo
from rayka.client.admin.admin_results import (
    BrokerDescription,
    BrokerState,
    PartitionDescription,
    TopicDescription,
)
from rayka.client.admin.drain_plan import drain_plan
from rayka.client.admin.drain_planner import DrainPlanner
from rayka.client.admin.drain_steps import Move, Seen, Step
from rayka.client.admin.reported_disks import NO_REPORTS, ReportedDisks
from rayka.errors import NoDiskRoom
from rayka.ids import TopicPartition
from rayka.protocol.load import DISK_USE_MAX, BrokerLoad, DescribeLoadResponse, LoadReport, NamedPartitionLoad
from rayka.protocol.membership import MetadataPartition, MetadataTopic
from tests.client.test_drain_planner import NOW_MS, planned, seen, sized, topic, tp

MB = 1_000_000


def disks(*named: NamedPartitionLoad, counts: int = 0, **held_and_free: tuple[int, int]) -> ReportedDisks:
    """Of each broker what its disks hold and have free, in MB; `named`: some of their replicas."""
    loads = [
        BrokerLoad(
            int(name[1:]),
            0,
            5_000,
            LoadReport(5_000, size_bytes=held * MB, free_bytes=free * MB, partition_count=counts),
        )
        for name, (held, free) in held_and_free.items()
    ]
    return ReportedDisks(DescribeLoadResponse(tuple(loads), named))


def brokers(count: int, *, replicas: int = 0, host: str = "") -> list[BrokerDescription]:
    return [
        BrokerDescription(each, host or f"m{each}", False, ("/d",), replica_count=replicas)
        for each in range(1, count + 1)
    ]


def sized_topic(*sizes: int) -> TopicDescription:
    """Partitions of broker 1 alone, of so many MB each."""
    logs = [
        ReplicaLogInfo("t", each, UUID(int=1), size * MB, 0, 9, 9, True) for each, size in enumerate(sizes)
    ]
    partitions = [PartitionDescription(each, 1, 0, (1,), (1,), logs=(log,)) for each, log in enumerate(logs)]
    return TopicDescription("t", UUID(int=1), tuple(partitions), {})


# ---- What an operator drains, and what goes by the load --------------------------------------------------------------


def test_a_broker_whose_disks_would_be_above_the_bound_is_passed_over() -> None:
    nodes = [*brokers(2), *brokers(3, replicas=9)[2:]]
    full = disks(b2=(75, 25), b3=(10, 90))
    assert drain_plan(1, nodes, [sized_topic(6)], (), full) == {tp(0): (3,)}
    assert drain_plan(1, nodes, [sized_topic(4)], (), full) == {tp(0): (2,)}


def test_a_broker_that_is_fenced_or_shuts_down_is_no_place() -> None:
    first, second, third, *_ = brokers(3)
    for state in (BrokerState.FENCED, BrokerState.SHUTTING_DOWN):
        nodes = [first, replace(second, state=state), third]
        assert drain_plan(1, nodes, [sized_topic(1, 1)]) == {tp(0): (3,), tp(1): (3,)}


def test_what_the_plan_gives_a_broker_takes_of_its_room() -> None:
    plan = drain_plan(1, brokers(3), [sized_topic(10, 10, 10)], (), disks(b2=(69, 31), b3=(0, 100)))
    assert sorted(plan.values()) == [(2,), (3,), (3,)]


def test_the_largest_replica_is_given_a_place_first() -> None:
    plan = drain_plan(1, brokers(3), [sized_topic(10, 40)], (), disks(b2=(0, 100), b3=(60, 40)))
    assert plan == {tp(1): (2,), tp(0): (3,)}


def test_a_drain_that_no_disk_has_room_for_is_refused_with_numbers() -> None:
    with pytest.raises(NoDiskRoom) as raised:
        drain_plan(1, brokers(3), [sized_topic(20, 9, 8)], (), disks(b2=(70, 30), b3=(79, 21)))
    assert str(raised.value) == (
        "without broker 1 disks would be above 80%: 2 of its replicas (t-0, t-2) with 28.0 MB find no room when the "
        "others are moved (broker 2 may take 1.0 MB more, broker 3 may take 1.0 MB more); add another broker first "
        "(one more in the spec, and `rayka start` again while the cluster runs), or have fewer records kept with "
        "`rayka topic alter TOPIC --config retention.bytes=…`"
    )


def test_sizes_that_no_broker_says_are_those_of_its_load_report() -> None:
    unknown = TopicDescription(
        "t", UUID(int=1), tuple(PartitionDescription(each, 1, 0, (1,), (1,)) for each in (0, 1, 2)), {}
    )
    named = NamedPartitionLoad("t", 1, 1, size_bytes=50 * MB)
    load = disks(named, counts=3, b1=(60, 40), b2=(0, 100), b3=(40, 100))
    assert [load.replica_bytes(1, tp(each)) // MB for each in (0, 1, 2)] == [5, 50, 5]
    assert drain_plan(1, brokers(3), [unknown], (), load)[tp(1)] == (2,)
    with pytest.raises(NoDiskRoom, match=r"\(t-1\) with 50.0 MB"):
        drain_plan(1, brokers(2), [unknown], (), disks(named, counts=3, b1=(60, 40), b2=(60, 40)))


def test_brokers_of_one_machine_may_share_a_disk_of_which_only_what_is_free_is_known() -> None:
    shared = disks(b1=(40, 60), b2=(90, 60), b3=(90, 60))
    nodes = brokers(3, host="here")
    assert len(drain_plan(1, nodes, [sized_topic(20, 20, 19)], (), shared)) == 3
    with pytest.raises(NoDiskRoom):
        drain_plan(1, nodes, [sized_topic(20, 20, 21)], (), shared)


def test_a_broker_that_has_reported_nothing_counts_as_having_room() -> None:
    assert drain_plan(1, brokers(2), [sized_topic(10**9)], (), NO_REPORTS) == {tp(0): (2,)}
    silent = ReportedDisks(DescribeLoadResponse((BrokerLoad(2, -1, -1, LoadReport(0)),), ()))
    assert drain_plan(1, brokers(2), [sized_topic(10**9)], (), silent) == {tp(0): (2,)}


@given(
    st.lists(st.integers(0, 60), max_size=12),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 90)), min_size=1, max_size=4),
)
def test_no_plan_fills_a_disk_above_the_bound(sizes: list[int], room: list[tuple[int, int]]) -> None:
    held = {f"b{each}": room[each - 2] for each in range(2, len(room) + 2)}
    try:
        plan = drain_plan(1, brokers(len(room) + 1), [sized_topic(*sizes)], (), disks(**held))
    except NoDiskRoom:
        return
    assert len(plan) == len(sizes)
    for name, (before, free) in held.items():
        given = [sizes[each.partition] for each, (to,) in plan.items() if to == int(name[1:])]
        assert not given or before + sum(given) < (before + free) * DISK_USE_MAX


# ---- A machine that goes by itself -----------------------------------------------------------------------------------


def going(*topics: MetadataTopic, **changes: Any) -> Move:
    found: Seen = seen(*topics, **({"brokers": 3} | changes))
    step = planned(DrainPlanner(), found)
    assert isinstance(step, Move)
    return step


def test_from_a_machine_that_goes_a_disk_is_filled_above_the_bound_only_where_it_must() -> None:
    held = sized(5 * MB)
    some = going(topic((2, 1)), brokers=4, sizes=held, disks=disks(b3=(79, 21), b4=(10, 90)))
    assert some.plan == {tp(0): (2, 4)}
    none = going(topic((2, 1)), brokers=3, sizes=held, disks=disks(b3=(79, 21)))
    assert none.plan == {tp(0): (2, 3)}


def test_from_a_machine_that_goes_nothing_is_copied_to_a_disk_that_it_would_fill() -> None:
    step = going(topic((2, 1), (2, 1)), sizes=sized(5 * MB, 6 * MB), disks=disks(b3=(90, 10)))
    assert step.plan == {tp(0): (2, 3)}
    assert step.reason == (
        "1 replicas with 5,000,000 bytes are moved to other brokers; 1 stay, as no other broker has room for them"
    )


def test_what_is_on_its_way_to_a_disk_takes_of_its_room() -> None:
    moving = MetadataPartition(0, 2, 1, (2, 3, 1), (2, 1), adding_replicas=(3,), removing_replicas=(1,))
    waiting = MetadataPartition(1, 2, 1, (2, 1), (2, 1))
    both = MetadataTopic("t", partitions=(moving, waiting))
    step = going(both, sizes=sized(5 * MB, 5 * MB), disks=disks(b3=(90, 10)))
    assert step.plan == {}
    assert going(both, sizes=sized(5 * MB, 5 * MB), disks=disks(b3=(90, 11))).plan == {tp(1): (2, 3)}


def test_what_came_to_a_disk_just_now_takes_of_its_room_until_it_is_reported() -> None:
    moving = MetadataPartition(0, 2, 1, (2, 3, 1), (2, 1), adding_replicas=(3,), removing_replicas=(1,))
    come = MetadataPartition(0, 2, 2, (2, 3), (2, 3))
    waiting = MetadataPartition(1, 2, 1, (2, 1), (2, 1))
    planner, last_report = DrainPlanner(), {"sizes": sized(5 * MB, 5 * MB), "disks": disks(b3=(90, 10))}

    def look(first: MetadataPartition, after_ms: int) -> Step | None:
        both = MetadataTopic("t", partitions=(first, waiting))
        return planned(planner, seen(both, brokers=3, now_ms=NOW_MS + after_ms, **last_report))

    assert look(moving, 0) is not None  # it says that the other one stays
    assert look(come, 1_000) is None
    assert look(come, 9_999) is None
    step = look(come, 10_000)
    assert isinstance(step, Move)
    assert step.plan == {tp(1): (2, 3)}


def test_the_most_urgent_replica_has_the_room_that_there_is() -> None:
    both = MetadataTopic(
        "t",
        partitions=(
            MetadataPartition(0, 2, 1, (2, 1), (2, 1)),
            MetadataPartition(1, 1, 1, (1,), (1,)),
        ),
    )
    step = going(both, sizes=sized(5 * MB, 5 * MB), disks=disks(b2=(90, 1), b3=(90, 6)))
    assert step.plan == {TopicPartition("t", 1): (3,)}


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 90)), min_size=1, max_size=4),
)
def test_from_a_machine_that_goes_no_disk_is_filled_up_and_nothing_stays_that_fits(
    sizes: list[int], room: list[tuple[int, int]]
) -> None:
    held = {f"b{each}": room[each - 2] for each in range(2, len(room) + 2)}
    found = seen(
        topic(*[(1,)] * len(sizes)),
        brokers=len(room) + 1,
        drains={1: 0},
        marks={1: 0},
        sizes=sized(*(each * MB for each in sizes)),
        disks=disks(**held),
        moves_max=len(sizes),
    )
    step = planned(DrainPlanner(), found)
    assert isinstance(step, Move)
    given_to = {
        name: sum(sizes[each.partition] for each, (to,) in step.plan.items() if to == int(name[1:]))
        for name in held
    }
    assert all(given_to[name] < free or not given_to[name] for name, (_, free) in held.items())
    left = [sizes[each] for each in range(len(sizes)) if tp(each) not in step.plan]
    assert all(each >= free - given_to[name] for each in left for name, (_, free) in held.items())
