"""Brokers come and go step by step, whichever planner takes the next step. Needs no Ray."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.actors.scaling_planner import (
    AskForRoom,
    DropRoom,
    Forget,
    Leave,
    Make,
    Planner,
    ReturnRoom,
    RoleView,
    Room,
    ScaledBroker,
    ScalingStatus,
    ScalingStep,
    Stay,
    Stop,
    free_id,
    with_scaled,
    with_scaled_among,
)
from rayka.actors.scaling_planner import without_scaled as declared_again
from rayka.config.cluster_config import ClusterSpec
from rayka.ids import Role
from rayka.protocol.load import LoadReport

TARGET, IN_S = 100, 5
FACTOR = 2
AWAY_S = 20  # until replicas of a broker that is away are made anew


def spec(**scaling: object) -> ClusterSpec:
    targets = {"disk_share": None, "processor_share": None, "partitions": None, "bytes_in": TARGET}
    return ClusterSpec.of(
        {
            "brokers": {"min": 3, "max": 6},
            "scaling": {**targets, "out_window_s": 2, "in_window_s": IN_S, **scaling},
        }
    )


@dataclass
class FakeBroker:
    replicas: int = 0
    has_actor: bool = True
    is_registered: bool = True
    is_leaving: bool = False
    is_lost: bool = False  # its machine
    has_directory: bool = True


@dataclass
class FakeCluster:
    """Ray, the metadata and the disks, in which each step does what it says."""

    load: int = 0
    machines_max: int = 9
    brokers: dict[int, FakeBroker] = field(
        default_factory=lambda: {each: FakeBroker(replicas=10) for each in (1, 2, 3)}
    )
    rooms: dict[int, Room] = field(default_factory=dict)
    now_ms: int = 0
    steps: list[ScalingStep] = field(default_factory=list)

    def seen(self) -> RoleView:
        registered = {id: each for id, each in self.brokers.items() if each.is_registered}
        active = [id for id, each in registered.items() if each.has_actor and not each.is_lost]
        bytes_in = self.load // max(1, len(active))
        return RoleView(
            self.now_ms,
            {
                id: ScaledBroker(
                    id in active,
                    each.is_leaving,
                    LoadReport(1, bytes_in=bytes_in, size_bytes=each.replicas, free_bytes=1000),
                    each.replicas if each.is_leaving or id not in active else None,
                )
                for id, each in registered.items()
            },
            dict(self.rooms),
            {id for id, each in self.brokers.items() if each.has_actor and not each.is_lost},
            0,
            FACTOR,
            AWAY_S * 1000,
        )

    def go_on(self, planner: Planner, seconds: int = 1) -> None:
        for _ in range(seconds):
            step = planner.next(self.seen())
            assert planner.status is not None
            assert planner.status.reason
            if step is not None:
                self.steps.append(step)
                self.do(step)
            self.happen()

    def happen(self) -> None:
        """What goes on by itself in a second."""
        self.now_ms += 1_000
        for id, each in self.brokers.items():
            if each.is_leaving:  # the controller moves what it holds
                moved = min(3, each.replicas)
                each.replicas -= moved
                self.brokers[1].replicas += moved * (id != 1)
        used = sum(not each.is_lost for each in self.brokers.values())
        for id in self.rooms:
            if used < self.machines_max:
                self.rooms[id] = Room(f"machine-{id}")
        for each in self.brokers.values():
            each.is_registered |= each.has_actor
        new = [each for each in self.brokers.values() if each.is_registered and not each.replicas]
        for each in new:
            if not each.is_leaving and not each.is_lost and self.brokers[1].replicas > 2:
                each.replicas, self.brokers[1].replicas = 2, self.brokers[1].replicas - 2

    def do(self, step: ScalingStep) -> None:
        id = step.broker_id
        match step:
            case AskForRoom():
                assert id not in self.brokers
                assert not self.rooms, "one at a time"
                self.rooms[id] = Room()
            case DropRoom() | ReturnRoom():
                del self.rooms[id]
            case Make():
                assert self.rooms[id].ray_node_id
                self.brokers[id] = FakeBroker(is_registered=False)
            case Leave():
                assert not any(each.is_leaving for each in self.brokers.values()), "one at a time"
                self.brokers[id].is_leaving = True
            case Stay():
                self.brokers[id].is_leaving = False
            case Stop():
                assert self.brokers[id].replicas == 0
                self.brokers[id].has_actor = False
            case Forget():
                assert self.brokers[id].replicas == 0
                assert not self.brokers[id].has_actor or self.brokers[id].is_lost
                del self.brokers[id]
            case _:
                raise AssertionError(step)


def taken(cluster: FakeCluster) -> list[str]:
    return [f"{type(each).__name__} {each.broker_id}" for each in cluster.steps]


def test_a_broker_comes_and_goes_again() -> None:
    cluster, planner = FakeCluster(load=390), Planner(spec())
    cluster.go_on(planner, 15)
    assert taken(cluster) == ["AskForRoom 4", "Make 4", "ReturnRoom 4"]
    assert cluster.steps[0].reason == "bytes_in 130 a broker, target 100"
    assert sorted(cluster.brokers) == [1, 2, 3, 4]
    cluster.steps.clear()
    cluster.load = 60
    cluster.go_on(planner, 30)
    assert taken(cluster) == ["Leave 4", "Stop 4", "Forget 4"]
    assert sorted(cluster.brokers) == [1, 2, 3]
    assert sum(each.replicas for each in cluster.brokers.values()) == 30


@settings(max_examples=30)
@given(
    loads=st.lists(st.integers(0, 700), min_size=1, max_size=6),
    deaths=st.sets(st.integers(0, 200), max_size=20),
    losses=st.dictionaries(st.integers(0, 200), st.integers(4, 6), max_size=2),
)
def test_the_next_planner_goes_on_and_the_cluster_comes_to_rest(
    loads: list[int], deaths: set[int], losses: dict[int, int]
) -> None:
    cluster, planner, second = FakeCluster(), Planner(spec()), 0
    for cluster.load in loads:
        for _ in range(30):
            if second in deaths:
                planner = Planner(spec())
            lost = cluster.brokers.get(losses.get(second, 0))
            if lost is not None:
                lost.is_lost, lost.has_actor = True, False
                cluster.brokers[1].replicas += lost.replicas
                lost.replicas = 0  # healed
            cluster.go_on(planner)
            second += 1
    cluster.go_on(planner, 150)
    cluster.steps.clear()
    cluster.go_on(planner, 50)
    assert cluster.steps == []
    assert cluster.rooms == {}
    assert not any(each.is_leaving or each.is_lost for each in cluster.brokers.values())
    count = len(cluster.brokers)
    assert 3 <= count <= 6
    assert count == 6 or cluster.load // count <= TARGET
    assert sum(each.replicas for each in cluster.brokers.values()) == 30
    assert planner.status is not None
    assert planner.status.desired == planner.status.actual == count


def test_a_room_that_never_comes_is_said_and_given_up_when_the_load_has_gone() -> None:
    cluster, planner = FakeCluster(load=390, machines_max=3), Planner(spec())
    cluster.go_on(planner, 10)
    assert taken(cluster) == ["AskForRoom 4"]
    cluster.rooms[4] = replace(cluster.rooms[4], lacking="machine 0 free of 1 asked")
    cluster.go_on(planner)
    status = planner.status
    assert status is not None
    assert (status.desired, status.actual) == (4, 3)
    assert status.reason == "broker 4 waits for a Ray node: machine 0 free of 1 asked"
    cluster.load = 60
    cluster.go_on(planner, 20)
    assert taken(cluster) == ["AskForRoom 4", "DropRoom 4"]


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (RoleView(0, move_count=3), "3 reassignments are under way"),
        (
            RoleView(0, {1: ScaledBroker(False, replica_count=1)}),
            "broker 1 is away, and holds replicas",
        ),
        (RoleView(0, {1: ScaledBroker(True)}), "broker 1 has not reported its load yet"),
    ],
    ids=["moves", "away", "unknown"],
)
def test_nothing_is_decided_while_the_cluster_changes(seen: RoleView, reason: str) -> None:
    cluster, planner = FakeCluster(load=900), Planner(spec())
    for _ in range(5):
        found = cluster.seen()
        shown = replace(seen, now_ms=found.now_ms, brokers={**found.brokers, **seen.brokers})
        assert planner.next(shown) is None
        assert planner.status is not None
        assert planner.status.reason == reason
        cluster.now_ms += 1_000


@pytest.mark.parametrize(
    ("replicas", "is_lost"), [(5, False), (0, False), (5, True)], ids=["with-replicas", "empty", "away"]
)
def test_a_broker_stays_when_the_others_became_too_few(replicas: int, is_lost: bool) -> None:
    cluster, planner = FakeCluster(), Planner(spec())
    cluster.brokers[4] = FakeBroker(replicas=replicas, is_leaving=True, is_lost=is_lost)
    cluster.brokers[2].is_lost = True
    step = planner.next(cluster.seen())
    assert step == Stay(4, "without it only 2 brokers are there")


def lose(cluster: FakeCluster, broker_id: int, *, is_healed: bool) -> None:
    """Its machine, for good."""
    lost = cluster.brokers[broker_id]
    lost.is_lost, lost.has_actor = True, False
    if is_healed:
        cluster.brokers[1].replicas += lost.replicas
        lost.replicas = 0


@pytest.mark.parametrize("is_healed", [True, False], ids=["made-anew", "nowhere-to-make-them-anew"])
def test_a_declared_broker_whose_machine_is_gone_for_good_is_no_capacity(is_healed: bool) -> None:
    cluster, planner = FakeCluster(load=290), Planner(spec())
    lose(cluster, 2, is_healed=is_healed)
    cluster.go_on(planner, AWAY_S)
    assert taken(cluster) == [], "it may come back"
    cluster.go_on(planner, 10)
    assert taken(cluster) == ["AskForRoom 4", "Make 4", "ReturnRoom 4"]
    assert cluster.steps[0].reason == "there are never fewer than 3"
    assert planner.status is not None
    assert (planner.status.desired, planner.status.actual) == (3, 3)
    lose(cluster, 2, is_healed=True)
    cluster.steps.clear()
    cluster.go_on(planner, 50)
    assert taken(cluster) == [], "three that serve are not too many, though four are registered"
    cluster.load = 390
    cluster.go_on(planner, 10)
    assert taken(cluster) == ["AskForRoom 5", "Make 5", "ReturnRoom 5"]


def test_a_broker_long_away_with_replicas_delays_departures_and_no_arrival() -> None:
    """They are not made anew: nowhere is room for them, or self.healing.enable is false."""
    cluster, planner = FakeCluster(load=390), Planner(spec())
    cluster.brokers |= {4: FakeBroker(replicas=4), 5: FakeBroker(replicas=4)}
    lose(cluster, 2, is_healed=False)
    cluster.go_on(planner, AWAY_S)
    assert taken(cluster) == []
    cluster.load = 450
    cluster.go_on(planner, 10)
    assert taken(cluster) == ["AskForRoom 6", "Make 6", "ReturnRoom 6"]
    cluster.steps.clear()
    cluster.load = 60
    cluster.go_on(planner, 5 * IN_S)
    assert taken(cluster) == []
    assert planner.status is not None
    assert planner.status.reason == "broker 2 is away, and holds replicas"
    lose(cluster, 2, is_healed=True)
    cluster.go_on(planner)
    assert taken(cluster) == ["Leave 6"]


def test_another_one_comes_while_a_move_waits_for_a_machine_that_is_gone_for_good() -> None:
    cluster, planner = FakeCluster(load=290), Planner(spec())
    lose(cluster, 2, is_healed=False)
    steps = []
    for _ in range(AWAY_S + 2):
        steps.append(planner.next(replace(cluster.seen(), move_count=1)))
        cluster.now_ms += 1_000
    assert steps[:-2] == [None] * AWAY_S
    assert isinstance(steps[-1], AskForRoom)


def test_no_broker_goes_while_one_that_may_soon_be_back_would_be_needed() -> None:
    """There are more than max, and one of them is away for a moment, which holds nothing."""
    narrow = ClusterSpec.of({"brokers": {"min": 3, "max": 3}, "config": {"balancer.enable": False}})
    cluster, planner = FakeCluster(), Planner(narrow)
    cluster.brokers[4] = FakeBroker(replicas=4)
    cluster.brokers[2].has_actor, cluster.brokers[2].replicas = False, 0
    cluster.go_on(planner, 20)
    assert taken(cluster) == []
    cluster.brokers[2].has_actor = True
    cluster.go_on(planner, 20)
    assert taken(cluster)[0] == "Leave 4"


def too_many(cluster: FakeCluster) -> Planner:
    """One more than max, which no load makes go sooner or later."""
    cluster.brokers[4] = FakeBroker(replicas=4)
    return Planner(ClusterSpec.of({"brokers": {"min": 3, "max": 3}}))


def refusals(cluster: FakeCluster, planner: Planner, seconds: int) -> list[tuple[int, bool]]:
    """When one was to go within that time, in seconds from now, and whether its refusal is news."""
    found, begin_ms = [], cluster.now_ms
    for _ in range(seconds):
        seen = cluster.seen()
        step = planner.next(seen)
        if step is not None:
            assert isinstance(step, Leave)
            is_news = planner.refused(step, "broker 4: too few brokers for topic clicks", seen)
            found.append(((cluster.now_ms - begin_ms) // 1_000, is_news))
        assert planner.status is not None
        assert planner.status.reason.endswith("broker 4: too few brokers for topic clicks")
        cluster.now_ms += 1_000
    return found


def test_a_refused_departure_is_tried_ever_more_seldom_and_reported_once() -> None:
    cluster = FakeCluster()
    planner = too_many(cluster)
    found = refusals(cluster, planner, 1_700)
    assert found == [
        (0, True),
        *((each, False) for each in (15, 45, 105, 225, 465, 765, 1_065, 1_365, 1_665)),
    ]
    assert planner.status is not None
    assert planner.status.reason.startswith("there are never more than 3; but broker 4")
    assert not planner.is_under_way


def with_loads(seen: RoleView, **values: int) -> RoleView:
    brokers = {
        id: replace(each, load=each.load and msgspec.structs.replace(each.load, **values))
        for id, each in seen.brokers.items()
    }
    return replace(seen, brokers=brokers)


@pytest.mark.parametrize(
    "change",
    [
        lambda seen: replace(seen, brokers={**seen.brokers, 5: seen.brokers[4]}),
        lambda seen: with_loads(seen, free_bytes=1_200),
        lambda seen: with_loads(seen, partition_count=1),
    ],
    ids=["another-serves", "more-room", "fewer-replicas"],
)
def test_a_refused_departure_is_tried_at_once_when_its_cause_may_have_changed(
    change: Callable[[RoleView], RoleView],
) -> None:
    cluster = FakeCluster()
    planner, seen = too_many(cluster), with_loads(cluster.seen(), partition_count=2)
    planner.refused(Leave(4, ""), "too many", seen)
    assert planner.next(seen) is None
    assert planner.next(with_loads(seen, free_bytes=1_050, partition_count=3)) is None
    assert isinstance(planner.next(change(seen)), Leave)


def test_after_a_departure_the_next_refusal_is_reported_again() -> None:
    cluster = FakeCluster()
    planner = too_many(cluster)
    assert refusals(cluster, planner, 20) == [(0, True), (15, False)]
    cluster.go_on(planner, 60)
    assert sorted(cluster.brokers) == [1, 2, 3]
    cluster.brokers[4] = FakeBroker(replicas=4)
    assert refusals(cluster, planner, 20) == [(0, True), (15, False)]


def test_an_empty_broker_with_an_actor_is_waited_for_however_long_it_takes() -> None:
    """Its machine is there: it recovers, or starts again and again."""
    cluster, planner = FakeCluster(), Planner(spec())
    for _ in range(3):
        found = cluster.seen()
        actors = {*found.actors, 4}
        step = planner.next(
            replace(found, brokers={**found.brokers, 4: ScaledBroker(False, replica_count=0)}, actors=actors)
        )
        assert step is None
        cluster.now_ms += 3_600_000


def test_scaling_that_never_goes_in_keeps_a_broker_whose_machine_is_gone() -> None:
    cluster, planner = FakeCluster(load=290), Planner(spec(never=["in"]))
    cluster.brokers[4] = FakeBroker()
    lose(cluster, 4, is_healed=True)
    cluster.go_on(planner, AWAY_S + 3 * IN_S)
    assert taken(cluster) == []


def test_a_broker_that_leaves_stays_when_it_is_declared_meanwhile() -> None:
    cluster, planner = FakeCluster(load=200), Planner(spec())
    cluster.brokers[2].is_leaving = True
    cluster.go_on(planner, 30)
    assert taken(cluster) == ["Stay 2"]
    assert cluster.steps[0].reason == "the specification declares it"


def test_a_step_that_cannot_continue_by_itself_causes_no_early_look() -> None:
    cluster, planner = FakeCluster(load=390, machines_max=3), Planner(spec())
    cluster.go_on(planner, 5)
    assert (taken(cluster), planner.is_under_way) == (["AskForRoom 4"], True)
    cluster.rooms[4] = replace(cluster.rooms[4], lacking="machine 0 free of 1 asked")
    cluster.go_on(planner)
    assert not planner.is_under_way
    calm, planner = FakeCluster(load=290), Planner(spec())
    lose(calm, 2, is_healed=True)
    calm.go_on(planner, AWAY_S // 2)
    assert not planner.is_under_way


def test_the_broker_with_the_least_to_move_goes_and_only_if_others_have_room() -> None:
    cluster, planner = FakeCluster(), Planner(spec(in_window_s=0))
    cluster.brokers |= {4: FakeBroker(replicas=9), 5: FakeBroker(replicas=4), 6: FakeBroker(replicas=7)}
    step = planner.next(cluster.seen())
    assert isinstance(step, Leave)
    assert step.broker_id == 5
    seen = cluster.seen()
    full = {
        id: replace(each, load=LoadReport(1, size_bytes=100, free_bytes=10, bytes_in=1))
        for id, each in seen.brokers.items()
    }
    assert planner.next(replace(seen, brokers=full)) is None
    assert planner.status is not None
    assert planner.status.reason.endswith("the disks of the others have 50 bytes free for 100")


def test_a_coordinator_comes_and_goes_as_a_broker_does() -> None:
    targets = {"coordinator_processor_share": 0.5, "out_window_s": 0, "in_window_s": 0}
    own = ClusterSpec.of({"coordinators": {"min": 1, "max": 2}, "scaling": targets})
    planner = Planner(own, Role.COORDINATOR)

    def shown(share: float, *extra: int, rooms: dict[int, Room] | None = None, **of_last: object) -> RoleView:
        nodes = {
            each: ScaledBroker(True, load=LoadReport(1, processor_permille=round(1000 * share)))
            for each in (1001, *extra)
        }
        if of_last:
            nodes[extra[-1]] = replace(nodes[extra[-1]], **of_last)
        actors = [each for each in nodes if nodes[each].is_active]
        return RoleView(0, nodes, rooms or {}, actors)

    steps = [
        planner.next(each)
        for each in (
            shown(0.6),
            shown(0.6, rooms={1002: Room("machine")}),
            shown(0.1, 1002),
            shown(0.1, 1002, is_leaving=True, replica_count=5),
            shown(0.1, 1002, is_leaving=True, replica_count=0),
            shown(0.1, 1002, is_leaving=True, replica_count=0, is_active=False),
        )
    ]
    assert [(type(each), each.broker_id) for each in steps if each is not None] == [
        (each, 1002) for each in (AskForRoom, Make, Leave, Stop, Forget)
    ]
    assert planner.next(shown(0.1)) is None, "the declared one stays"
    assert planner.status == ScalingStatus(
        1, 1, 1, 2, "within the targets: processor_share 10% a coordinator, target 50%"
    )


def test_a_broker_whose_drain_is_stuck_stays_once_nothing_moves_any_more() -> None:
    nodes = {each: ScaledBroker(True, load=LoadReport(1)) for each in (1, 2, 3)}
    nodes[4] = ScaledBroker(True, is_leaving=True, replica_count=7, obstacle="no other disk has room")
    planner = Planner(spec())
    assert planner.next(RoleView(0, nodes, {}, (1, 2, 3, 4), move_count=2)) is None
    assert planner.status is not None
    assert planner.status.reason == "broker 4 goes: 7 replicas to move"
    assert planner.next(RoleView(0, nodes, {}, (1, 2, 3, 4))) == Stay(4, "no other disk has room")


def test_a_spec_with_scaled_brokers_keeps_its_range() -> None:
    declared = spec()
    larger = with_scaled(declared, [5])
    assert list(larger.roles) == [1, 2, 3, 5, 3001]
    assert larger.ranges == declared.ranges
    assert with_scaled(declared, [2]) is declared
    assert list(with_scaled_among(declared, [1, 4, 1001, 3001]).roles) == [1, 2, 3, 4, 3001]
    both = ClusterSpec.of({"brokers": 2, "coordinators": {"min": 1, "max": 4}})
    more = with_scaled_among(both, [3, 1001, 1004, 3001])
    assert more.roles == {**both.roles, 1004: (Role.COORDINATOR,)}
    assert declared_again(more).roles == both.roles
    assert free_id(both, Role.COORDINATOR, [1001, 1002, 1004]) == 1003
    assert with_scaled_among(ClusterSpec(brokers=3), [4]).roles == ClusterSpec(brokers=3).roles
    assert free_id(declared, Role.BROKER, [1, 2, 3, 4, 6]) == 5
