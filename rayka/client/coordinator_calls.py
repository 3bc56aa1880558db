"""A client's calls to the coordinators of groups: finds, remembers and calls a group's coordinator.

Any broker names the coordinator of a group. Retriable errors are retried with back-off until a timeout. After most of
them (no coordinator, another node coordinates, the call broke off) the coordinator is looked up again; a coordinator
that still loads is asked again. A silent coordinator is given up as soon as a broker names another one (`call_watch`).
A request that parks, a join or a sync, is answered only after other members have done their part: its silence is usual,
so its coordinator is looked up once a second, and the request ends when the coordinator moves.

Invariants: one lookup of a group at a time, shared by all calls that need it; a repeated request may be executed
twice; each attempt of a commit names the epoch of the coordinator it is sent to, so that a late one is refused. Kafka:
AbstractCoordinator, CoordinatorStrategy (E1, G18).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec

from rayka.client.call_watch import CallWatch, SilenceLimits
from rayka.client.cluster_nodes import ClusterNodes
from rayka.client.retry import Retry, telling
from rayka.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    ErrorCode,
    NetworkException,
    RaykaError,
    RequestTimedOut,
    UnavailableError,
    error_for,
)
from rayka.ids import NO_NODE, node_name
from rayka.ports import Request
from rayka.protocol.groups import FindCoordinatorRequest, GroupCoordinator, OffsetCommitRequest
from rayka.protocol.later import Later

ResponseT = TypeVar("ResponseT")
RequestT = TypeVar("RequestT", bound=Request[Any])
_SILENCE_LIMITS = SilenceLimits(0.1, 1.0)
_PARKED_SILENCE_LIMITS = SilenceLimits(1.0, 1.0, often_s=1.0)
_NO_ANSWER = (NetworkException, RequestTimedOut)

logger = logging.getLogger(__name__)


def _what(group_id: str) -> str:
    return f"the coordinator of group {group_id!r}"


def _addressed(request: RequestT, coordinator: GroupCoordinator) -> RequestT:
    """The request for this coordinator; a commit names the coordinator's epoch."""
    if isinstance(request, OffsetCommitRequest):
        return msgspec.structs.replace(request, coordinator_epoch=coordinator.leader_epoch)
    return request


class CoordinatorCalls:
    """Calls the coordinators of groups. All methods belong to the client's loop."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self._nodes = nodes
        # By group id, until a call to the coordinator fails.
        self._known: dict[str, GroupCoordinator] = {}
        # Lookups under way, by group id.
        self._looks: dict[str, asyncio.Task[GroupCoordinator]] = {}
        # Open calls by group id: those answered at once, and those that park.
        self._calls = CallWatch[str](_SILENCE_LIMITS, self._on_silent)
        self._parked = CallWatch[str](_PARKED_SILENCE_LIMITS, self._on_parked)

    def __repr__(self) -> str:
        known = {group_id: node_name(found.node_id) for group_id, found in self._known.items()}
        return f"<CoordinatorCalls {known}>"

    def known(self, group_id: str) -> int:
        """The node id of the group's coordinator as last found, else NO_NODE."""
        found = self._known.get(group_id)
        return found.node_id if found is not None else NO_NODE

    async def call(
        self,
        group_id: str,
        request: Request[ResponseT],
        timeout_ms: int,
        *,
        may_park: bool = False,
        check: Callable[[ResponseT], object] = lambda response: None,
    ) -> ResponseT:
        """The answer of the group's coordinator, which is found and asked again until `timeout_ms`.

        `check` raises the error inside a response; a retriable one is retried like the error of a call. With `may_park`
        one attempt may take the whole timeout. Raises an ApiError that no retry mends at once; at the timeout the last
        error, or UnavailableError if no node answered.
        """
        retry = Retry(timeout_ms, self._nodes.backoff)
        problem: RaykaError | None = None
        what = _what(group_id)
        with nullcontext() if may_park else telling(lambda: self._nodes.awaited(what, problem)):
            while True:
                try:
                    response = await self._attempt(group_id, request, retry.remaining_ms, may_park=may_park)
                    check(response)
                    return response
                except (ApiError, UnavailableError) as error:
                    if isinstance(error, ApiError) and not error.retriable:
                        raise
                    problem = error
                    self._on_problem(group_id, error)
                if not await retry.pause():
                    raise self._too_late(what, problem) from problem

    def begin(
        self,
        group_id: str,
        request: Request[ResponseT],
        timeout_ms: int,
        on_end: Callable[[ResponseT | BaseException], object],
    ) -> Later[ResponseT] | None:
        """Makes the first attempt of a `call` without a task; `on_end` gets its outcome unless the result is cancelled.

        Returns None, and does nothing, while the coordinator is unknown.
        """
        found = self._known.get(group_id)
        if found is None:
            return None
        node_id, attempt_ms = found.node_id, min(timeout_ms, self._nodes.request_timeout_ms)
        call = self._nodes.network.call(node_id, _addressed(request, found), attempt_ms)
        answer = self._calls.answer(node_id, group_id, call)
        answer.then(partial(self._on_first, group_id, node_id, on_end))
        return answer

    def awaited(self, group_id: str) -> str:
        """The log message for a caller of `begin` that has waited for seconds."""
        return self._nodes.awaited(_what(group_id), None)

    def abandon(self) -> "list[asyncio.Task[GroupCoordinator]]":
        """Cancels all lookups of coordinators; returns their tasks, which end soon."""
        looks = list(self._looks.values())
        for look in looks:
            look.cancel()
        return looks

    # ---- One attempt -------------------------------------------------------------------------------------------------

    async def _attempt(
        self, group_id: str, request: Request[ResponseT], remaining_ms: int, *, may_park: bool
    ) -> ResponseT:
        found = self._known.get(group_id)
        if found is None:
            found = await self._find(group_id, remaining_ms)
        node_id = found.node_id
        attempt_ms = remaining_ms if may_park else min(remaining_ms, self._nodes.request_timeout_ms)
        watch = self._parked if may_park else self._calls
        try:
            call = self._nodes.network.call(node_id, _addressed(request, found), attempt_ms)
            return await watch.answer(node_id, group_id, call)
        except _NO_ANSWER:
            self._nodes.on_unanswered(node_id)
            raise

    def _on_first(
        self,
        group_id: str,
        node_id: int,
        on_end: Callable[[ResponseT | BaseException], object],
        outcome: ResponseT | BaseException,
    ) -> None:
        if isinstance(outcome, _NO_ANSWER):
            self._nodes.on_unanswered(node_id)
        if isinstance(outcome, ApiError) and outcome.retriable:
            self._on_problem(group_id, outcome)
        on_end(outcome)

    async def _find(self, group_id: str, timeout_ms: int) -> GroupCoordinator:
        try:
            return await asyncio.wait_for(asyncio.shield(self._look_soon(group_id)), timeout_ms / 1000)
        except TimeoutError:
            raise self._nodes.unavailable("no broker answered in time") from None

    def _on_problem(self, group_id: str, problem: RaykaError) -> None:
        if not isinstance(problem, CoordinatorLoadInProgress):
            self._known.pop(group_id, None)

    def _too_late(self, what: str, problem: RaykaError) -> RaykaError:
        if isinstance(problem, _NO_ANSWER):
            return self._nodes.unavailable(f"{what} did not answer: {problem}", problem)
        return problem

    # ---- The coordinator --------------------------------------------------------------------------------------------

    def _look_soon(self, group_id: str) -> "asyncio.Task[GroupCoordinator]":
        look = self._looks.get(group_id)
        if look is None:
            look = self._looks[group_id] = asyncio.get_running_loop().create_task(self._look(group_id))
            look.add_done_callback(lambda done: self._on_looked(group_id, done))
        return look

    async def _look(self, group_id: str) -> GroupCoordinator:
        request = FindCoordinatorRequest((group_id,))
        response = await self._nodes.ask_any_broker(request, last_id=self.known(group_id))
        (found,) = response.coordinators
        if found.error_code is not ErrorCode.NONE:
            raise error_for(found.error_code, f"group {group_id!r}: {found.error_message}")
        self._known[group_id] = found
        for watch in (self._calls, self._parked):
            watch.give_up(lambda node_id, subject: subject == group_id and node_id != found.node_id)
        return found

    def _on_looked(self, group_id: str, look: "asyncio.Task[GroupCoordinator]") -> None:
        del self._looks[group_id]
        if not look.cancelled() and (error := look.exception()) is not None:
            logger.debug("the coordinator of group %r: %s", group_id, error)

    def _on_silent(self, node_id: int, group_ids: list[str]) -> None:
        self._nodes.on_unanswered(node_id)
        self._on_parked(node_id, group_ids)

    def _on_parked(self, node_id: int, group_ids: list[str]) -> None:
        for group_id in dict.fromkeys(group_ids):
            self._look_soon(group_id)
