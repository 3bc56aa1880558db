"""How a broker and a client find the active controller, and lose it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rayka.errors import (
    BrokerNotAvailable,
    NetworkException,
    NotController,
    RequestTimedOut,
    UnknownServerError,
)
from rayka.ids import NO_NODE, Role
from rayka.node.controller_link import ControllerLink, Pauses
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    NodeState,
    StatusRequest,
    StatusResponse,
)
from tests.node.log_support import run

CONTROLLERS = (3001, 3002, 3003)
HEARTBEAT = HeartbeatRequest(1, 0, 0, False, False)


class Controllers:
    """Controllers that name the leader; `known`: leader and epoch as each knows them, None for one that is down."""

    def __init__(self, known: dict[int, tuple[int, int] | None]) -> None:
        self.known = known
        self.asked: list[int] = []
        self.called: list[int] = []
        self.hung: dict[int, asyncio.Event] = {}

    async def node_ids(self) -> Sequence[int]:
        return (1, *CONTROLLERS)

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        is_status = isinstance(request, StatusRequest)
        (self.asked if is_status else self.called).append(node_id)
        known = self.known[node_id]
        if known is None:
            raise NetworkException(f"no process answers as node {node_id}")
        if node_id in self.hung:
            await self.hung[node_id].wait()
        leader_id, epoch = known
        if is_status:
            return StatusResponse(
                node_id, (Role.CONTROLLER,), NodeState.RUNNING, 1, "here", (), leader_id=leader_id, leader_epoch=epoch
            )  # fmt: skip
        if leader_id != node_id:
            raise NotController("elsewhere", leader_id, epoch)
        return HeartbeatResponse(is_caught_up=True, is_fenced=False, should_shut_down=False)


def test_the_leader_is_asked_for_once_and_then_called() -> None:
    async def scenario() -> None:
        controllers = Controllers(dict.fromkeys(CONTROLLERS, (3002, 5)))
        link = ControllerLink(controllers)
        for _ in range(3):
            await link.call(HEARTBEAT, 1_000)
        assert (controllers.asked, controllers.called) == ([3001], [3002, 3002, 3002])

    run(scenario())


def test_a_controller_that_does_not_answer_is_asked_last() -> None:
    async def scenario() -> None:
        controllers = Controllers({3001: None, 3002: (NO_NODE, 5), 3003: (NO_NODE, 5)})
        active = ActiveController(controllers)
        for _ in range(2):
            with pytest.raises(NotController, match=r"no controller is active; .*controller-3002 is running"):
                await active.find()
        assert controllers.asked == [3001, 3002, 3003, 3002, 3003, 3001]
        controllers.known[3002] = (3002, 6)
        assert await active.find() == 3002

    run(scenario())


def test_where_no_controller_answers_the_network_is_to_blame() -> None:
    async def scenario() -> None:
        with pytest.raises(NetworkException, match="controller-3001: no process answers as node 3001; "):
            await ActiveController(Controllers(dict.fromkeys(CONTROLLERS))).find()

    run(scenario())


def test_hints_of_controllers_that_are_behind_lead_no_caller_in_circles() -> None:
    async def scenario() -> None:
        controllers = Controllers({3001: None, 3002: (3001, 5), 3003: (3001, 5)})
        link = ControllerLink(controllers)
        for _ in range(5):
            with pytest.raises((NotController, NetworkException)):
                await link.call(HEARTBEAT, 1_000)
        assert controllers.called == [3001]
        controllers.known[3001] = (3001, 5)  # it was the network
        await link.call(HEARTBEAT, 1_000)
        assert controllers.called == [3001, 3001]

    run(scenario())


def test_a_leader_of_an_older_epoch_is_not_believed() -> None:
    async def scenario() -> None:
        controllers = Controllers({3001: (3001, 5), 3002: (3002, 6), 3003: (3002, 6)})
        active = ActiveController(controllers)
        assert active.learn(NO_NODE, 6)
        assert await active.find() == 3002
        assert not active.learn(3001, 5)
        assert (active.leader_id, active.epoch) == (3002, 6)

    run(scenario())


def test_an_answer_that_names_another_leader_is_believed() -> None:
    async def scenario() -> None:
        controllers = Controllers(dict.fromkeys(CONTROLLERS, (3001, 5)))
        link = ControllerLink(controllers)
        await link.call(HEARTBEAT, 1_000)
        controllers.known = dict.fromkeys(CONTROLLERS, (3003, 6))
        with pytest.raises(NotController):
            await link.call(HEARTBEAT, 1_000)
        await link.call(HEARTBEAT, 1_000)
        assert controllers.called == [3001, 3001, 3003]

    run(scenario())


def test_a_call_that_waits_for_a_leader_ends_when_it_has_a_successor() -> None:
    async def scenario() -> None:
        controllers = Controllers(dict.fromkeys(CONTROLLERS, (3001, 5)))
        link = ControllerLink(controllers)
        await link.call(HEARTBEAT, 1_000)
        controllers.hung[3001] = asyncio.Event()
        waiting = [asyncio.ensure_future(link.call(HEARTBEAT, 60_000)) for _ in range(2)]
        await asyncio.sleep(1)
        assert not any(each.done() for each in waiting)
        link.learn(3002, 6)
        link.learn(3003, 7)
        for each in waiting:
            with pytest.raises(NotController, match="controller-3001 was succeeded by controller-3003"):
                await each

    run(scenario())


@pytest.mark.parametrize("error", [RequestTimedOut("late"), BrokerNotAvailable("starting")])
def test_a_leader_that_does_not_serve_is_looked_for_again(error: Exception) -> None:
    class Failing(Controllers):
        async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
            response = await super().call(node_id, request, timeout_ms)
            if isinstance(response, HeartbeatResponse) and len(self.called) == 1:
                raise error
            return response

    async def scenario() -> None:
        controllers = Failing(dict.fromkeys(CONTROLLERS, (3001, 5)))
        link = ControllerLink(controllers)
        with pytest.raises(type(error)):
            await link.call(HEARTBEAT, 1_000)
        await link.call(HEARTBEAT, 1_000)
        assert controllers.called == [3001, 3001]

    run(scenario())


def test_a_call_that_waits_for_a_leader_that_was_succeeded_may_have_run() -> None:
    async def scenario() -> None:
        controllers = Controllers(dict.fromkeys(CONTROLLERS, (3001, 5)))
        active = ActiveController(controllers)
        controllers.hung[3001] = asyncio.Event()
        active.suggest(3001)
        waiting = asyncio.ensure_future(active.call(HEARTBEAT, 60_000))
        await asyncio.sleep(1)
        active.learn(3002, 6)
        with pytest.raises(NotController) as raised:
            await waiting
        assert (raised.value.may_have_run, active.leader_id) == (True, 3002)

    run(scenario())


def test_a_leader_that_a_broker_names_is_called_unless_it_is_the_one_that_failed() -> None:
    async def scenario() -> None:
        controllers = Controllers({3001: None, 3002: (3003, 6), 3003: (3003, 6)})
        active = ActiveController(controllers)
        active.suggest(3001)
        with pytest.raises(NetworkException):
            await active.call(HEARTBEAT, 1_000)
        active.suggest(3001)
        active.suggest(NO_NODE)
        await active.call(HEARTBEAT, 1_000)
        assert (controllers.asked, controllers.called) == ([3001, 3002], [3001, 3003])

    run(scenario())


@pytest.mark.parametrize(
    ("caller", "expected"), [(ActiveController, UnknownServerError), (ControllerLink, NetworkException)]
)
def test_a_bug_of_a_controller_is_an_error_that_passes_for_a_node_alone(
    caller: type[ActiveController], expected: type[Exception]
) -> None:
    class Broken(Controllers):
        async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
            response = await super().call(node_id, request, timeout_ms)
            if isinstance(response, HeartbeatResponse):
                raise UnknownServerError("a bug")
            return response

    async def scenario() -> None:
        active = caller(Broken(dict.fromkeys(CONTROLLERS, (3001, 5))))
        with pytest.raises(expected, match="a bug"):
            await active.call(HEARTBEAT, 1_000)
        assert active.leader_id == NO_NODE

    run(scenario())


def test_pauses_grow_and_stay_short() -> None:
    pauses = Pauses()
    assert [pauses.next_ms() for _ in range(5)] == [20, 40, 80, 100, 100]
    pauses.reset()
    assert pauses.next_ms() == 20
