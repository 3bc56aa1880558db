"""Finds and calls the active controller, for one client or node.

Every controller's status names the leader and the epoch that this controller knows. The highest epoch seen counts, so a
leader that was cut off from its quorum does not keep a caller that knows its successor. Invariants:

- The epoch never falls.
- A leader that failed to answer is trusted again only when its own status says that it leads: hints of controllers that
  have not noticed the failure lead no caller in circles.
- A controller that did not answer is asked last.
- When a newer leader becomes known, open calls to an older one end at once: their answer can only be a refusal.

Kafka: `NodeToControllerChannelManager`, `ControllerNodeProvider`.
"""

import asyncio
from typing import TypeVar

from rayka.errors import ApiError, NetworkException, NotController, UnknownServerError
from rayka.ids import NO_EPOCH, NO_NODE, Role, node_name, possible_controllers
from rayka.ports import Network, Request
from rayka.protocol.membership import StatusRequest, StatusResponse

ResponseT = TypeVar("ResponseT")
# Short: a controller that does not answer must not hold up the search.
_STATUS_TIMEOUT_MS = 250


class ActiveController:
    """One caller's knowledge of the quorum's leader, and its calls to the leader."""

    def __init__(self, network: Network) -> None:
        self._network = network
        # Ids of the controllers in the order in which `find` asks them.
        self._order: list[int] = []
        # The leader of `epoch` did not answer, or did not lead.
        self._has_leader_failed = False
        self._failed_id = NO_NODE
        # Node ids of the open calls, by the scope that ends the call.
        self._open: dict[asyncio.Timeout, int] = {}
        # NO_NODE: not known, or failed.
        self.leader_id = NO_NODE
        self.epoch = NO_EPOCH

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.leader_id} epoch={self.epoch} open={len(self._open)}>"

    async def call(self, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        """The active controller's answer to one attempt. After a failure the next attempt searches for the controller.

        Raises the ApiError of the answer, or a retriable one: the controller was not found, did not answer, or was
        succeeded.
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
        """Takes note of the leader that an answer named for an epoch, NO_NODE: none known. False: nothing new."""
        is_missing = epoch == self.epoch and self.leader_id == NO_NODE and not self._has_leader_failed
        if epoch > self.epoch:
            self.epoch, self._has_leader_failed = epoch, False
        elif not is_missing or leader_id == NO_NODE:
            return False
        self._set_leader(leader_id)
        return True

    def suggest(self, leader_id: int) -> None:
        """Takes note of the leader that a broker named without an epoch, unless this node failed last."""
        if leader_id not in (NO_NODE, self._failed_id):
            self.leader_id = leader_id

    def forget(self, node_id: int) -> None:
        """Takes note that a node did not answer, or does not lead."""
        if node_id in self._order:
            self._order.remove(node_id)
            self._order.append(node_id)
        if node_id == self.leader_id != NO_NODE:
            self._failed_id, self.leader_id, self._has_leader_failed = node_id, NO_NODE, True

    def on_not_leader(self, leader_id: int, leader_epoch: int) -> None:
        """Takes note of a refusal: the node called does not lead; `leader_id` is the leader it knows, or NO_NODE."""
        self.forget(self.leader_id)
        self.learn(leader_id, leader_epoch)

    async def find(self) -> int:
        """The id of the leader. Asks the controllers one after the other if the leader is not known.

        Raises NotController with their answers when none leads, NetworkException when none answers.
        """
        if self.leader_id != NO_NODE:
            return self.leader_id
        known = possible_controllers(await self._network.node_ids())
        self._order = [each for each in self._order if each in known]
        self._order += [each for each in known if each not in self._order]
        found, answered_count = [], 0
        for node_id in list(self._order):
            try:
                status = await self._network.call(node_id, StatusRequest(), _STATUS_TIMEOUT_MS)
            except ApiError as error:
                self.forget(node_id)
                found.append(with_node_name(node_id, str(error)))
            else:
                answered_count += Role.CONTROLLER in status.roles
                self._on_status(status)
                found.append(f"{node_name(node_id)} is {status.state}: {status.detail or 'it does not lead'}")
            if self.leader_id != NO_NODE:
                return self.leader_id
        reason = "no controller is active; " + ("; ".join(found) or "none is known")
        raise NotController(reason) if answered_count else NetworkException(reason)

    def _on_status(self, status: StatusResponse) -> None:
        self.learn(status.leader_id, status.leader_epoch)
        if status.leader_id == status.node_id and status.leader_epoch == self.epoch:
            self._has_leader_failed = False
            self._set_leader(status.leader_id)

    def _set_leader(self, leader_id: int) -> None:
        """Sets the leader, NO_NODE: not known. Ends open calls to other nodes."""
        self.leader_id = leader_id
        if leader_id == NO_NODE:
            return
        if leader_id == self._failed_id:
            self._failed_id = NO_NODE
        now_s = asyncio.get_running_loop().time()
        for scope, node_id in self._open.items():
            if node_id != leader_id and not scope.expired():
                scope.reschedule(now_s)


def with_node_name(node_id: int, text: str) -> str:
    """The text of a node's answer or failure, with the node's name before it unless the text begins with the name."""
    name = node_name(node_id)
    return text if text.partition(" ")[0].endswith(name) else f"{name}: {text}"
