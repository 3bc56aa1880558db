"""The nodes of one cluster as a client calls them: any node for what all of them know, and the active controller.

The brokers name the active controller; where they name none, or the one that has just failed, the controllers are asked
(`ActiveController`). A request to it is repeated until its timeout; one that is to be sent once goes through `active`.
A group's coordinator is found and called in the same way (`coordinator_calls`).
Invariants: what is known is never replaced by what a node says that knows less; a node that failed to answer
is asked after the others. Kafka: NetworkClient, ControllerNodeProvider (G18).
"""

import asyncio
import logging
from random import Random
from typing import TypeVar

from rayka.client.bootstrap import ClientConfig
from rayka.client.retry import Backoff, Retry, telling
from rayka.errors import (
    ApiError,
    CoordinatorNotAvailable,
    NetworkException,
    NotController,
    RaykaError,
    RequestTimedOut,
    UnavailableError,
)
from rayka.ids import NO_NODE, NO_OFFSET, Role, node_name, role_of
from rayka.ports import Network, Request
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.membership import MetadataBroker, MetadataRequest, MetadataResponse

ResponseT = TypeVar("ResponseT")
_NODE_TIMEOUT_MS = 5_000  # one unresponsive node must not use up the whole budget
_UNREACHABLE_MAX = 3  # tries in a row; a broker that then cannot be reached serves no client

logger = logging.getLogger(__name__)


class ClusterNodes:
    """See the module. All methods belong to the loop that the client runs on."""

    def __init__(self, network: Network, cluster_name: str, config: ClientConfig, random: Random) -> None:
        self.network = network
        self.cluster_name = cluster_name
        self.backoff = Backoff(config, random)
        self.request_timeout_ms = config.request_timeout_ms
        self.node_timeout_ms = min(config.request_timeout_ms, _NODE_TIMEOUT_MS)
        self.brokers: tuple[MetadataBroker, ...] = ()
        self.active = ActiveController(network)
        self._cluster_id = ""
        self._brokers_offset = NO_OFFSET
        self._last_answered = NO_NODE
        self._unanswered: dict[int, None] = {}
        self._does_any_answer = True

    def __repr__(self) -> str:
        return f"<ClusterNodes of {self.cluster_name} {self.active!r}>"

    def learn(self, response: MetadataResponse) -> None:
        """What a node says of the brokers and the controller."""
        if response.cluster_id != self._cluster_id:  # offsets and epochs of another cluster say nothing
            self._cluster_id, self._brokers_offset = response.cluster_id, NO_OFFSET
            self.active = ActiveController(self.network)
        self.active.suggest(response.controller_id)
        if response.metadata_offset >= self._brokers_offset:
            self.brokers, self._brokers_offset = response.brokers, response.metadata_offset

    # ---- The active controller -------------------------------------------------------------------------------------

    async def call_controller(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The active controller's answer; it is found and asked again until timeout_ms.

        A request that is asked again may have been executed before. Raises UnavailableError, or the ApiError of a
        request that failed as a whole.
        """
        return (await self.call_controller_again(request, timeout_ms))[0]

    async def call_controller_again(
        self, request: Request[ResponseT], timeout_ms: int
    ) -> tuple[ResponseT, bool]:
        """As `call_controller`, and whether an earlier attempt that failed may have been executed."""
        retry, may_have_run = Retry(timeout_ms, self.backoff), False
        problem: RaykaError | None = None
        with telling(lambda: self.awaited(self._controller_name(), problem)):
            while True:
                try:
                    if self.active.leader_id == NO_NODE:
                        await self._ask_who_leads()
                    attempt_ms = min(retry.remaining_ms, self.request_timeout_ms)
                    return await self.active.call(request, attempt_ms), may_have_run
                except (ApiError, UnavailableError) as error:
                    if isinstance(error, ApiError) and not error.retriable:
                        raise
                    may_have_run |= _may_have_run(error)
                    problem = error
                if not await retry.pause():
                    raise self.unavailable(_no_controller(problem), problem) from problem

    async def _ask_who_leads(self) -> None:
        """As the brokers say. Where no node answers, the search among the controllers says what is wrong."""
        try:
            self.learn((await self.ask_any(()))[1])
        except UnavailableError as error:
            logger.debug("%s", error)

    def _controller_name(self) -> str:
        leader_id = self.active.leader_id
        return "an active controller" if leader_id == NO_NODE else node_name(leader_id)

    # ---- Any node --------------------------------------------------------------------------------------------------

    def on_unanswered(self, node_id: int) -> None:
        """The node failed to answer something: others are asked before it, until it answers."""
        self._unanswered[node_id] = None

    def trusted_broker(self, node_id: int) -> int:
        """This broker, or another that runs if it failed to answer something; for what any broker can do."""
        if node_id not in self._unanswered:
            return node_id
        others = (each.node_id for each in self.brokers if not each.is_fenced)
        return next((each for each in others if each not in self._unanswered), node_id)

    async def ask_any(self, names: tuple[str, ...]) -> tuple[int, MetadataResponse]:
        """The first node that answers, and what it knows of these topics."""
        return await self._first_answer(MetadataRequest(names))

    async def ask_any_broker(self, request: Request[ResponseT], *, last_id: int = NO_NODE) -> ResponseT:
        """The answer of the first node that does so and is no controller; this one is asked after the others.

        Raises UnavailableError, CoordinatorNotAvailable as a broker says it, or an ApiError that no retry mends.
        """
        return (await self._first_answer(request, last_id=last_id, asks_controllers=False))[1]

    async def _first_answer(
        self, request: Request[ResponseT], *, last_id: int = NO_NODE, asks_controllers: bool = True
    ) -> tuple[int, ResponseT]:
        """Of those known that have not failed since they answered; then of all, the ones that failed last."""
        problem: RaykaError | None = None
        tried: list[int] = []
        for find in (self._trusted, self._all):
            for node_id in await find(last_id):
                if node_id in tried or (role_of(node_id) is Role.CONTROLLER and not asks_controllers):
                    continue
                tried.append(node_id)
                try:
                    response = await self.network.call(node_id, request, self.node_timeout_ms)
                except ApiError as error:
                    if not error.retriable or isinstance(error, CoordinatorNotAvailable):
                        raise
                    problem = error
                    self.on_unanswered(node_id)
                else:
                    self._last_answered, self._does_any_answer = node_id, True
                    self._unanswered.pop(node_id, None)
                    return node_id, response
        self._does_any_answer = False
        asked = ", ".join(node_name(each) for each in tried) or "no node (none is known)"
        raise self.unavailable(f"asked {asked}; last error: {problem}", problem) from problem

    async def _trusted(self, last_id: int) -> list[int]:
        return [each for each in self._known() if each not in self._unanswered and each != last_id]

    async def _all(self, last_id: int) -> list[int]:
        """Those known and those the network knows. To ask the network costs a call."""
        found = dict.fromkeys([*self._known(), *await self.network.node_ids()])
        return sorted(found, key=lambda each: (each in self._unanswered, each == last_id))

    def _known(self) -> list[int]:
        """The node that answered last, then the brokers."""
        order = [self._last_answered, *(each.node_id for each in self.brokers if not each.is_fenced)]
        return [each for each in dict.fromkeys(order) if each != NO_NODE]

    # ---- Every broker ----------------------------------------------------------------------------------------------

    async def wait_until_applied(self, metadata_offset: int, timeout_ms: int) -> None:
        """Returns when every usable broker has applied the metadata log up to an offset, or is UnavailableError.

        One that is fenced meanwhile, or cannot be reached, is not waited for: it applies everything before it serves
        again (H5).
        """
        retry, tries = Retry(timeout_ms, self.backoff), 0
        if not self.brokers:
            await self._refresh_brokers()
        waiting = [each.node_id for each in self.brokers if not each.is_fenced]
        while waiting:
            asking = (self._problem_of(each, metadata_offset, retry.remaining_ms) for each in waiting)
            problems = dict(zip(waiting, await asyncio.gather(*asking), strict=True))
            tries += 1
            behind = {
                node_id: problem
                for node_id, problem in problems.items()
                if problem and not (isinstance(problem, NetworkException) and tries >= _UNREACHABLE_MAX)
            }
            if behind and not await retry.pause():
                node_id, problem = next(iter(behind.items()))
                late = f"{node_name(node_id)} is behind metadata offset {metadata_offset}"
                raise self.unavailable(f"{late}: {problem}", problem) from problem
            if behind:
                await self._refresh_brokers()
            waiting = [each.node_id for each in self.brokers if each.node_id in behind and not each.is_fenced]

    async def _problem_of(self, broker_id: int, metadata_offset: int, timeout_ms: int) -> ApiError | None:
        """Why the broker has not applied the metadata log up to that offset. Raises what no retry mends."""
        request = MetadataRequest((), min_metadata_offset=metadata_offset)
        try:
            await self.network.call(broker_id, request, min(timeout_ms, self.node_timeout_ms))
        except ApiError as error:
            if not error.retriable:
                raise
            return error
        return None

    async def _refresh_brokers(self) -> None:
        """Which brokers are fenced, as the controller knows it; stays as it was when no controller answers."""
        try:
            self.learn(await self.active.call(MetadataRequest(()), self.node_timeout_ms))
        except ApiError as error:
            logger.debug("brokers of %s: %s", self.cluster_name, error)

    # ---- What is said ----------------------------------------------------------------------------------------------

    def unavailable(self, reason: str, problem: RaykaError | None = None) -> UnavailableError:
        """The hint asks whether the cluster runs only when none of its nodes answers."""
        if self._does_any_answer or isinstance(problem, NotController):
            hint = "a majority of its controllers must run, see `rayka quorum status`"
        else:
            hint = "is it running?"
        return UnavailableError(f"cluster {self.cluster_name!r} is not available: {reason}; {hint}")

    def awaited(self, what: str, problem: RaykaError | None) -> str:
        """The message of a client that has waited for seconds."""
        still = f"cluster {self.cluster_name!r}: still waiting for {what}"
        return still + (f" ({problem})" if problem else "")


def _no_controller(problem: RaykaError) -> str:
    """A NotController problem says it already: then the controllers were asked which of them leads."""
    is_said = isinstance(problem, NotController)
    return str(problem) if is_said else f"the active controller did not answer: {problem}"


def _may_have_run(error: RaykaError) -> bool:
    """Whether the request that failed so may have been executed, now or later."""
    is_lost = isinstance(error, (NetworkException, RequestTimedOut))
    return is_lost or (isinstance(error, NotController) and error.may_have_run)
