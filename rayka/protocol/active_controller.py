"""Which controller is active, as one caller finds out: asked of the controllers themselves, and learnt from answers.

Every controller's status names the leader and epoch that it knows. The highest epoch heard of counts, so a leader that
was cut off from its quorum does not keep a caller that has heard of its successor. Invariants: the epoch never falls;
a leader that failed to answer is believed again only when it says itself that it leads, so hints of those who have not
noticed yet lead no caller in circles; a controller that did not answer is asked last.

Kafka: `NodeToControllerChannelManager`, `ControllerNodeProvider`.
"""

from rayka.errors import ApiError, NetworkException, NotController
from rayka.ids import NO_EPOCH, NO_NODE, Role, node_name, possible_controllers
from rayka.ports import Network
from rayka.protocol.cluster import StatusRequest, StatusResponse

_STATUS_TIMEOUT_MS = 250  # one that does not answer must not hold up the search for long


class ActiveController:
    """What one caller knows of the quorum's leader."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._order: list[int] = []
        self._is_doubted = False
        self.leader_id = NO_NODE
        self.epoch = NO_EPOCH

    def __repr__(self) -> str:
        return f"<ActiveController {self.leader_id} epoch={self.epoch}>"

    def learn(self, leader_id: int, epoch: int) -> bool:
        """A node named the leader of an epoch, -1 for none. Whether that was news."""
        if epoch > self.epoch:
            self.leader_id, self.epoch, self._is_doubted = leader_id, epoch, False
            return True
        is_missing = epoch == self.epoch and self.leader_id == NO_NODE and not self._is_doubted
        if is_missing and leader_id != NO_NODE:
            self.leader_id = leader_id
            return True
        return False

    def forget(self, node_id: int) -> None:
        """The node did not answer, or does not lead."""
        if node_id in self._order:
            self._order.remove(node_id)
            self._order.append(node_id)
        if node_id == self.leader_id != NO_NODE:
            self.leader_id, self._is_doubted = NO_NODE, True

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
                found.append(said_by(node_id, str(error)))
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
            self.leader_id, self._is_doubted = status.leader_id, False

    async def _controllers(self) -> list[int]:
        known = possible_controllers(await self._network.node_ids())
        self._order = [each for each in self._order if each in known]
        self._order += [each for each in known if each not in self._order]
        return list(self._order)


def said_by(node_id: int, text: str) -> str:
    """What a node answered, or why it did not, which mostly names it already: the name once, then the text."""
    name = node_name(node_id)
    return text if text.partition(" ")[0].endswith(name) else f"{name}: {text}"
