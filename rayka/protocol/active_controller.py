"""The way of one caller, a client or a node, to the active controller: found, called, and looked for again.

Every controller's status names the leader and epoch that it knows. The highest epoch seen counts, so a leader that
was cut off from its quorum does not keep a caller that knows its successor. Invariants: the epoch never falls;
a leader that failed to answer is believed again only when it says itself that it leads, so that hints of controllers
which have not noticed yet lead no caller in circles; a controller that did not answer is asked last; when a newer
leader becomes known, calls that still wait for an older one end at once, because their answer can only be that it does
not lead.

Kafka: `NodeToControllerChannelManager`, `ControllerNodeProvider`.
"""

import asyncio
from typing import TypeVar

from rayka.errors import ApiError, NetworkException, NotController, UnknownServerError
from rayka.ids import NO_EPOCH, NO_NODE, Role, node_name, possible_controllers
from rayka.ports import Network, Request
from rayka.protocol.membership import StatusRequest, StatusResponse

ResponseT = TypeVar("ResponseT")
_STATUS_TIMEOUT_MS = 250  # one that does not answer must not hold up the search for long


class ActiveController:
    """What one caller knows of the quorum's leader, and its calls to it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._order: list[int] = []
        self._has_leader_failed = False
        self._failed_id = NO_NODE
        self._open: dict[asyncio.Timeout, int] = {}
        self.leader_id = NO_NODE
        self.epoch = NO_EPOCH

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.leader_id} epoch={self.epoch} open={len(self._open)}>"

    async def call(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The active controller's answer to one attempt; the next one looks for it again where this one failed.

        Raises the ApiError it gave, or a retriable one when it was not found, did not answer, or was succeeded.
        """
        node_id = await self.find()
        try:
            return await self._until_succeeded(node_id, request, timeout_ms)
        except ApiError as error:
            if error.retriable or isinstance(error, UnknownServerError):
                self.forget(node_id)
            if isinstance(error, NotController):
                self.learn(error.leader_id, error.leader_epoch)
            raise

    async def _until_succeeded(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        scope = asyncio.timeout(None)
        self._open[scope] = node_id
        try:
            async with scope:
                return await self._network.call(node_id, request, timeout_ms)
        except TimeoutError:
            succeeded = f"{node_name(node_id)} was succeeded by {node_name(self.leader_id)}"
            raise NotController(succeeded, self.leader_id, self.epoch, may_have_run=True) from None
        finally:
            del self._open[scope]

    def learn(self, leader_id: int, epoch: int) -> bool:
        """An answer named the leader of an epoch, or said with -1 that none is known. Whether that was news."""
        is_missing = epoch == self.epoch and self.leader_id == NO_NODE and not self._has_leader_failed
        if epoch > self.epoch:
            self.epoch, self._has_leader_failed = epoch, False
        elif not is_missing or leader_id == NO_NODE:
            return False
        self._lead(leader_id)
        return True

    def suggest(self, leader_id: int) -> None:
        """A broker names the leader without its epoch: it is called, unless it is the one that failed last."""
        if leader_id not in (NO_NODE, self._failed_id):
            self.leader_id = leader_id

    def forget(self, node_id: int) -> None:
        """The node did not answer, or does not lead."""
        if node_id in self._order:
            self._order.remove(node_id)
            self._order.append(node_id)
        if node_id == self.leader_id != NO_NODE:
            self._failed_id, self.leader_id, self._has_leader_failed = node_id, NO_NODE, True

    def on_not_leader(self, leader_id: int, leader_epoch: int) -> None:
        """The controller called has answered that it does not lead, and names the leader if it knows one."""
        self.forget(self.leader_id)
        self.learn(leader_id, leader_epoch)

    async def find(self) -> int:
        """The node that leads; controllers are asked for it, one after the other, when it is not known.

        Raises NotController, which says what they answered, when none leads, NetworkException when none answers.
        """
        if self.leader_id != NO_NODE:
            return self.leader_id
        found, answered_count = [], 0
        for node_id in await self._controllers():
            try:
                status = await self._network.call(node_id, StatusRequest(), _STATUS_TIMEOUT_MS)
            except ApiError as error:
                self.forget(node_id)
                found.append(with_node_name(node_id, str(error)))
            else:
                answered_count += Role.CONTROLLER in status.roles
                self._take(status)
                found.append(f"{node_name(node_id)} is {status.state}: {status.detail or 'it does not lead'}")
            if self.leader_id != NO_NODE:
                return self.leader_id
        reason = "no controller is active; " + ("; ".join(found) or "none is known")
        raise NotController(reason) if answered_count else NetworkException(reason)

    def _take(self, status: StatusResponse) -> None:
        self.learn(status.leader_id, status.leader_epoch)
        if status.leader_id == status.node_id and status.leader_epoch == self.epoch:
            self._has_leader_failed = False
            self._lead(status.leader_id)

    def _lead(self, leader_id: int) -> None:
        """This one leads, with -1 no node that is known; what waits for another one ends."""
        self.leader_id = leader_id
        if leader_id == NO_NODE:
            return
        if leader_id == self._failed_id:
            self._failed_id = NO_NODE
        now_s = asyncio.get_running_loop().time()
        for scope, node_id in self._open.items():
            if node_id != leader_id and not scope.expired():
                scope.reschedule(now_s)

    async def _controllers(self) -> list[int]:
        known = possible_controllers(await self._network.node_ids())
        self._order = [each for each in self._order if each in known]
        self._order += [each for each in known if each not in self._order]
        return list(self._order)


def with_node_name(node_id: int, text: str) -> str:
    """What a node answered, or why it did not, which mostly names it already: the name once, then the text."""
    name = node_name(node_id)
    return text if text.partition(" ")[0].endswith(name) else f"{name}: {text}"
