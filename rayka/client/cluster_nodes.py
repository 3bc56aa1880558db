"""Calls of a client to the nodes of its cluster: to any node, to the active controller, and to every broker.

Brokers name the active controller; if they name none, or one that has just failed, the controllers are asked
(`ActiveController`). `call_controller` repeats a request until its timeout; `active` sends a request once. Coordinators
of groups are found and called by `coordinator_calls`.
Invariants: metadata never replace metadata of a later offset; a node that failed to answer is asked after the others.
Kafka: NetworkClient, ControllerNodeProvider (G18).
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
# One unresponsive node must not use up the whole budget.
_NODE_TIMEOUT_MS = 5_000
# Failed attempts in a row; a broker that cannot be reached by then serves no client.
_UNREACHABLE_MAX = 3

logger = logging.getLogger(__name__)


class ClusterNodes:
    """The nodes of one cluster. All methods belong to the client's loop."""

    def __init__(self, network: Network, cluster_name: str, config: ClientConfig, random: Random) -> None:
        self.network = network
        self.cluster_name = cluster_name
        self.backoff = Backoff(config, random)
        self.request_timeout_ms = config.request_timeout_ms
        self.node_timeout_ms = min(config.request_timeout_ms, _NODE_TIMEOUT_MS)
        # The registered brokers as of metadata offset `_brokers_offset`.
        self.brokers: tuple[MetadataBroker, ...] = ()
        self.active = ActiveController(network)
        self._cluster_id = ""
        self._brokers_offset = NO_OFFSET
        self._last_answered = NO_NODE
        # Nodes that failed to answer and have not answered `_first_answer` since.
        self._unanswered: dict[int, None] = {}
        # False: the last `_first_answer` got no answer from any node.
        self._does_any_answer = True

    def __repr__(self) -> str:
        return f"<ClusterNodes of {self.cluster_name} {self.active!r}>"

    def learn(self, response: MetadataResponse) -> None:
        """Takes over brokers and controller from metadata, unless the brokers known are of a later offset."""
        # Offsets and epochs of another cluster cannot be compared.
        if response.cluster_id != self._cluster_id:
            self._cluster_id, self._brokers_offset = response.cluster_id, NO_OFFSET
            self.active = ActiveController(self.network)
        self.active.suggest(response.controller_id)
        if response.metadata_offset >= self._brokers_offset:
            self.brokers, self._brokers_offset = response.brokers, response.metadata_offset

    # ---- The active controller -------------------------------------------------------------------------------------

    async def call_controller(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The active controller's answer; the controller is found and asked again until `timeout_ms`.

        A repeated request may be executed twice. Raises UnavailableError, or the ApiError of a request that failed as a
        whole.
        """
        return (await self.call_controller_again(request, timeout_ms))[0]

    async def call_controller_again(
        self, request: Request[ResponseT], timeout_ms: int
    ) -> tuple[ResponseT, bool]:
        """The answer of `call_controller`, and whether an earlier, failed attempt may have been executed."""
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
        """Learns the active controller from any node. A failure is not raised: the call of the controllers follows and
        reports a better reason.
        """
        try:
            self.learn((await self.ask_any(()))[1])
        except UnavailableError as error:
            logger.debug("%s", error)

    def _controller_name(self) -> str:
        leader_id = self.active.leader_id
        return "an active controller" if leader_id == NO_NODE else node_name(leader_id)

    # ---- Any node --------------------------------------------------------------------------------------------------

    def on_unanswered(self, node_id: int) -> None:
        """The node failed to answer. Other nodes are asked before this node until it answers."""
        self._unanswered[node_id] = None

    def trusted_broker(self, node_id: int) -> int:
        """The broker for a request that any broker can serve: this one, or a live one if this one failed to answer."""
        if node_id not in self._unanswered:
            return node_id
        others = (each.node_id for each in self.brokers if not each.is_fenced)
        return next((each for each in others if each not in self._unanswered), node_id)

    async def ask_any(self, names: tuple[str, ...]) -> tuple[int, MetadataResponse]:
        """The first node that answers, and its metadata of these topics."""
        return await self._first_answer(MetadataRequest(names))

    async def ask_any_broker(self, request: Request[ResponseT], *, last_id: int = NO_NODE) -> ResponseT:
        """The answer of the first broker or coordinator that answers; the node `last_id` is asked after the others.

        Raises UnavailableError, a broker's CoordinatorNotAvailable, or an ApiError that no retry mends.
        """
        return (await self._first_answer(request, last_id=last_id, asks_controllers=False))[1]

    async def _first_answer(
        self, request: Request[ResponseT], *, last_id: int = NO_NODE, asks_controllers: bool = True
    ) -> tuple[int, ResponseT]:
        """The first node that answers, and its answer.

        Known nodes without a failure are asked first, then all others, with those that failed last.
        """
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
        """The known nodes and those of the network, whose list costs a call."""
        found = dict.fromkeys([*self._known(), *await self.network.node_ids()])
        return sorted(found, key=lambda each: (each in self._unanswered, each == last_id))

    def _known(self) -> list[int]:
        """The node that answered last, then the unfenced brokers."""
        order = [self._last_answered, *(each.node_id for each in self.brokers if not each.is_fenced)]
        return [each for each in dict.fromkeys(order) if each != NO_NODE]

    # ---- Every broker ----------------------------------------------------------------------------------------------

    async def wait_until_applied(self, metadata_offset: int, timeout_ms: int) -> None:
        """Returns when every usable broker has applied the metadata log up to an offset.

        A broker that is fenced or cannot be reached is not waited for, because it applies all metadata before it serves
        again (H5). Raises UnavailableError when a broker is still behind at the timeout.
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
        """The retriable error of a broker that has not applied the offset; None: applied. Raises other errors."""
        request = MetadataRequest((), min_metadata_offset=metadata_offset)
        try:
            await self.network.call(broker_id, request, min(timeout_ms, self.node_timeout_ms))
        except ApiError as error:
            if not error.retriable:
                raise
            return error
        return None

    async def _refresh_brokers(self) -> None:
        """Learns from the controller which brokers are fenced; changes nothing if no controller answers."""
        try:
            self.learn(await self.active.call(MetadataRequest(()), self.node_timeout_ms))
        except ApiError as error:
            logger.debug("brokers of %s: %s", self.cluster_name, error)

    # ---- Messages ----------------------------------------------------------------------------------------------

    def unavailable(self, reason: str, problem: RaykaError | None = None) -> UnavailableError:
        """The error with a hint. The hint asks whether the cluster runs only if no node answers."""
        if self._does_any_answer or isinstance(problem, NotController):
            hint = "a majority of its controllers must run, see `rayka quorum status`"
        else:
            hint = "is it running?"
        return UnavailableError(f"cluster {self.cluster_name!r} is not available: {reason}; {hint}")

    def awaited(self, what: str, problem: RaykaError | None) -> str:
        """The message of a client that has waited for seconds, with the last problem."""
        still = f"cluster {self.cluster_name!r}: still waiting for {what}"
        return still + (f" ({problem})" if problem else "")


def _no_controller(problem: RaykaError) -> str:
    """The reason that no controller answered. A NotController names the controllers' answers already."""
    is_said = isinstance(problem, NotController)
    return str(problem) if is_said else f"the active controller did not answer: {problem}"


def _may_have_run(error: RaykaError) -> bool:
    """Whether a request that failed with this error may have been executed, or may be executed later."""
    is_lost = isinstance(error, (NetworkException, RequestTimedOut))
    return is_lost or (isinstance(error, NotController) and error.may_have_run)
