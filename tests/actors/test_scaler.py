"""What the supervisor keeps and says while brokers come and go, with fakes behind the port. Needs no Ray."""

import asyncio
from collections import deque
from dataclasses import replace
from uuid import UUID

from rayka.actors.scaler import Scaler
from rayka.actors.scaling_planner import (
    AskForRoom,
    Forget,
    Leave,
    RoleView,
    Room,
    ScaledBroker,
    ScalingStep,
    Stop,
)
from rayka.actors.supervisor_handle import Identities
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import UnavailableError
from rayka.ids import Role
from rayka.protocol.load import LoadReport

TARGETS = {"disk_share": None, "processor_share": None, "partitions": None, "bytes_in": 100}
SPEC = ClusterSpec.of(
    {
        "brokers": {"min": 3, "max": 5},
        "scaling": {**TARGETS, "out_window_s": 0, "in_window_s": 0},
    }
)


class FakePort:
    """Shows what it is told to, and keeps what was done."""

    def __init__(self) -> None:
        self.shown = deque[RoleView | Exception | None]()
        self.coordinators: RoleView | None = None
        self.is_looked_at = asyncio.Event()
        self.refusal = ""
        self.errors: dict[type[ScalingStep], Exception] = {}
        self.taken: list[ScalingStep] = []
        self.recorded: list[tuple[str, int, str]] = []

    async def see(self) -> dict[Role, RoleView] | None:
        self.is_looked_at.set()
        shown = self.shown.popleft()
        if isinstance(shown, Exception):
            raise shown
        if shown is None:
            return None
        others = {Role.COORDINATOR: self.coordinators} if self.coordinators else {}
        return {Role.BROKER: shown, **others}

    async def take(self, step: ScalingStep) -> str:
        if type(step) in self.errors:
            raise self.errors[type(step)]
        self.taken.append(step)
        return self.refusal

    async def record(self, kind: str, broker_id: int, reason: str) -> None:
        self.recorded.append((kind, broker_id, reason))


def standing(bytes_in: int, *, is_leaving: bool = False, replica_count: int | None = None) -> ScaledBroker:
    return ScaledBroker(True, is_leaving, LoadReport(1, bytes_in=bytes_in, free_bytes=10), replica_count)


def seen(
    bytes_in: int, *extra: int, rooms: dict[int, Room] | None = None, actors: tuple[int, ...] = ()
) -> RoleView:
    brokers = {each: standing(bytes_in) for each in (1, 2, 3, *extra)}
    return RoleView(0, brokers, rooms or {}, (*brokers, *actors))


def leaving(replica_count: int) -> RoleView:
    found = seen(0, 4)
    gone = {4: standing(0, is_leaving=True, replica_count=replica_count)}
    return RoleView(0, {**found.brokers, **gone}, {}, found.actors)


def scaler(port: FakePort, spec: ClusterSpec = SPEC) -> Scaler:
    return Scaler(spec, port, 1.0, asyncio.Lock())


def said(scaler: Scaler, role: Role = Role.BROKER) -> str:
    status = scaler.status(role)
    assert status is not None
    return status.reason


def look(scaler: Scaler, port: FakePort, *shown: RoleView | None) -> list[bool]:
    port.shown.extend(shown)

    async def looks() -> list[bool]:
        return [await scaler.look() for _ in shown]

    return asyncio.run(looks())


def test_every_decision_is_recorded_with_its_reason() -> None:
    port = FakePort()
    assert look(scaler(port), port, seen(150)) == [False]
    assert port.taken == [AskForRoom(4, "bytes_in 150 a broker, target 100")]
    assert port.recorded == [("scale-out-begun", 4, "bytes_in 150 a broker, target 100")]


def test_a_broker_is_kept_from_its_actor_until_it_is_empty_and_going() -> None:
    port = FakePort()
    mine = scaler(port)
    kept = []
    for each in (seen(60), seen(60, actors=(4,)), seen(60, 4), leaving(7), leaving(0), seen(60)):
        look(mine, port, each)
        kept.append(4 in mine.spec.roles)
    assert kept == [False, True, True, True, False, False]
    assert [type(each) for each in port.taken] == [Stop]


def test_brokers_that_had_come_are_kept_before_the_first_look() -> None:
    port = FakePort()
    again = scaler(port, SPEC.model_copy(update={"nodes": _nodes(1, 2, 3, 4)}))
    assert 4 in again.spec.roles
    look(again, port, None)
    assert 4 in again.spec.roles, "another process changes the cluster"
    look(again, port, seen(60))
    assert 4 not in again.spec.roles


def test_a_refused_departure_is_one_event_and_is_tried_again_after_a_pause() -> None:
    port = FakePort()
    port.refusal = "too few brokers for topic clicks"
    mine = scaler(port)
    looks = [replace(seen(10, 4), now_ms=each * 5_000) for each in range(4)]
    assert look(mine, port, *looks) == [True] * 4, "it is not asked for again at once"
    assert [type(each) for each in port.taken] == [Leave, Leave], "at first, and after 15 s"
    assert port.recorded == [("scale-in-waits", 4, "too few brokers for topic clicks")]
    assert said(mine) == "broker 4: too few brokers for topic clicks"


def test_a_refused_step_other_than_a_departure_is_no_event_and_says_why() -> None:
    port = FakePort()
    port.refusal = "its room has gone"
    mine = scaler(port)
    assert look(mine, port, seen(60, rooms={4: Room("here")})) == [True]
    assert port.recorded == []
    assert said(mine) == "broker 4: its room has gone"


def test_lacking_resources_are_recorded_once() -> None:
    port = FakePort()
    mine = scaler(port)
    calm = seen(85, rooms={4: Room(lacking="machine 0 free of 1 asked")})
    look(mine, port, calm, calm, calm)
    assert port.recorded == [("scale-out-waits", 4, "machine 0 free of 1 asked")]


def test_an_error_is_said_and_the_next_look_goes_on() -> None:
    port = FakePort()
    mine = scaler(port)
    look(mine, port, seen(90))

    async def until_asked_again() -> None:
        task = asyncio.get_running_loop().create_task(mine.run())
        await port.is_looked_at.wait()
        await asyncio.sleep(0)
        task.cancel()

    port.shown.append(UnavailableError("no controller"))
    port.is_looked_at.clear()
    asyncio.run(until_asked_again())
    assert said(mine) == "not done yet: no controller"
    look(mine, port, seen(150))
    assert [type(each) for each in port.taken] == [AskForRoom]


def test_a_broker_that_has_gone_is_forgotten_and_recorded() -> None:
    port = FakePort()
    gone = {4: ScaledBroker(False, True, None, 0)}
    found = seen(60)
    look(scaler(port), port, RoleView(0, {**found.brokers, **gone}, {}, found.actors))
    assert [type(each) for each in port.taken] == [Forget]
    assert port.recorded == [("scale-in-ended", 4, "it has stopped, and held no replica")]


def test_only_the_registered_disk_belongs_to_a_node_that_came_again() -> None:
    port, first, second = FakePort(), frozenset({UUID(int=1)}), frozenset({UUID(int=2)})
    known = Identities("ours", {1: first, 4: first, 5: first, 3001: first})
    mine = scaler(port)
    assert mine.identities(known) == known, "nothing was seen yet"
    found = seen(60, 4)
    again = replace(found.brokers[4], directory_ids=second)
    look(mine, port, RoleView(0, {**found.brokers, 4: again}, {}, found.actors))
    assert mine.identities(known) == Identities("ours", {1: first, 4: second, 3001: first})


def test_before_the_first_look_only_the_disks_of_declared_nodes_are_known() -> None:
    """On record are those of the last start: an earlier broker 4 may have had them, whose machine has come back."""
    port = FakePort()
    mine = scaler(port, SPEC.model_copy(update={"nodes": _nodes(1, 2, 3, 4)}))
    assert [mine.knows_disks_of(each) for each in (1, 3, 4)] == [True, True, False]
    look(mine, port, None)
    assert not mine.knows_disks_of(4)
    look(mine, port, seen(60, 4))
    assert mine.knows_disks_of(4)


BOTH = ClusterSpec.of(
    {
        "brokers": {"min": 3, "max": 5},
        "coordinators": {"min": 1, "max": 2},
        "scaling": {**TARGETS, "out_window_s": 0, "in_window_s": 0},
    }
)


def coordinators(processor_share: float, *extra: int) -> RoleView:
    load = LoadReport(1, processor_permille=round(1000 * processor_share), free_bytes=10)
    ids = (1001, *extra)
    return RoleView(0, {each: ScaledBroker(True, load=load) for each in ids}, {}, ids)


def test_brokers_and_coordinators_follow_their_own_loads() -> None:
    port = FakePort()
    port.coordinators = coordinators(0.8)
    mine = scaler(port, BOTH)
    assert (mine.has_looked, mine.status(Role.COORDINATOR)) == (False, None)
    assert look(mine, port, seen(85)) == [False]
    assert port.taken == [AskForRoom(1002, "processor_share 80% a coordinator, target 70%")]
    assert port.recorded == [("scale-out-begun", 1002, "processor_share 80% a coordinator, target 70%")]
    assert said(mine) == "within the targets: bytes_in 85 a broker, target 100"
    port.coordinators = coordinators(0.1, 1002)
    look(mine, port, seen(150))
    assert [(type(each), each.broker_id) for each in port.taken[1:]] == [(AskForRoom, 4), (Leave, 1002)]
    assert {1001, 1002} <= mine.spec.roles.keys()
    assert 4 not in mine.spec.roles


def test_a_step_that_fails_for_brokers_holds_up_no_coordinator() -> None:
    port = FakePort()
    port.coordinators = coordinators(0.1, 1002)
    port.errors[AskForRoom] = UnavailableError("Ray does not answer")
    mine = scaler(port, BOTH)
    look(mine, port, seen(150))
    assert said(mine) == "not done yet: Ray does not answer"
    assert [(type(each), each.broker_id) for each in port.taken] == [(Leave, 1002)]


def _nodes(*broker_ids: int) -> tuple[object, ...]:
    values = [{"id": each, "roles": ["broker"]} for each in broker_ids]
    return ClusterSpec.of({"nodes": [*values, {"id": 3001, "roles": ["controller"]}]}).nodes or ()
