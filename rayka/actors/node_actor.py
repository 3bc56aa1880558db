"""What the actors of all roles share: one remote method for each API of the table, handed to the shell.

The arguments are what `rayka.actors.ray_network` makes of a call. An API that the node does not serve is refused by its
inbox.

Ray imports the class of an actor in every process that looks the actor up. So what only the actor's own process needs,
the node above all, is imported when the actor is made: a command or a client would pay for it at its first call.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rayka.ids import Role
from rayka.protocol.apis import APIS

if TYPE_CHECKING:
    from rayka.actors.node_placement import Placement
    from rayka.actors.ray_network import PackedAnswer
    from rayka.actors.shell import NodeProcess, StartableNode
    from rayka.node.broker_node import BrokerNode
    from rayka.node.combined_node import CombinedNode
    from rayka.node.controller_node import ControllerNode
    from rayka.node.settings import NodeSettings
    from rayka.protocol.wire import Payload


class NodeActor:
    """One node as an actor; `ray.remote` is applied in `rayka.actors.node_handles`."""

    async def __init__(self, placement: "Placement") -> None:  # type: ignore[misc]
        from rayka.actors.shell import NodeShell

        self.placement = placement
        self._shell = NodeShell(self.make_node, placement)

    def make_node(self, settings: "NodeSettings") -> "StartableNode":
        """The node that this kind of actor runs."""
        raise AssertionError("made by a subclass")

    async def process(self) -> "NodeProcess":
        """What this actor was made from and which process it is."""
        return self._shell.process()

    async def open_lane(self) -> bytes:
        """Where this actor serves its direct lane, and a ticket for one connection to it: an encoded `LaneOffer`."""
        return self._shell.open_lane()

    async def stop(self) -> None:
        """Stops the node under control. The actor is to be ended then."""
        await self._shell.stop()

    async def stop_broker(self) -> None:
        """The broker's part of `stop`, where the node is a controller too, which goes on."""
        await self._shell.stop_broker()


def _remote_method(api_name: str) -> "Callable[..., Awaitable[PackedAnswer]]":
    async def method(self: NodeActor, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle(api_name, call)

    method.__name__, method.__qualname__ = api_name, f"{NodeActor.__name__}.{api_name}"
    return method


for _api in APIS:
    setattr(NodeActor, _api.name, _remote_method(_api.name))


# The `Controller` actor: a controller node on Ray. The node is imported late; see `node_actor`.


class Controller(NodeActor):
    """A controller voter as an actor."""

    def make_node(self, settings: "NodeSettings") -> "ControllerNode":
        from rayka.node.controller_node import ControllerNode

        return ControllerNode(settings)


# The `Broker` actor: a broker node on Ray, or one that is a coordinator or a controller too.
#
# The nodes are imported late; see `node_actor`.


class Broker(NodeActor):
    """A broker as an actor."""

    def make_node(self, settings: "NodeSettings") -> "BrokerNode | CombinedNode":
        from rayka.node.broker_node import BrokerNode
        from rayka.node.combined_node import CombinedNode

        is_controller = Role.CONTROLLER in self.placement.roles
        return CombinedNode(settings) if is_controller else BrokerNode(settings)


# The `Coordinator` actor: a broker node for internal partitions, or one that is a controller too.


class Coordinator(Broker):
    """A coordinator as an actor; its node learns from its settings what it is."""
