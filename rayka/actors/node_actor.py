"""The actor classes of nodes: one remote method for each API of the table, handed to the node's shell.

The arguments of a method are a call packed by `rayka.actors.ray_network`. The node's inbox refuses an API that the node
does not serve.

Ray imports the class of an actor in every process that looks the actor up. So the node, and all that only the actor's
own process needs, is imported when the actor is made: a command or a client would pay for the import at its first call.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rayka.ids import Role
from rayka.protocol.apis import APIS

if TYPE_CHECKING:
    from rayka.actors.node_placement import NodePlacement
    from rayka.actors.ray_network import PackedAnswer
    from rayka.actors.shell import NodeProcess, StartableNode
    from rayka.node.broker_node import BrokerNode
    from rayka.node.combined_node import CombinedNode
    from rayka.node.controller_node import ControllerNode
    from rayka.node.settings import NodeSettings
    from rayka.protocol.wire import Payload


class NodeActor:
    """One node as an actor. `ray.remote` is applied in `rayka.actors.node_handles`."""

    async def __init__(self, placement: "NodePlacement") -> None:  # type: ignore[misc]
        from rayka.actors.shell import NodeShell

        self.placement = placement
        self._shell = NodeShell(self.make_node, placement)

    def make_node(self, settings: "NodeSettings") -> "StartableNode":
        """Makes the node that this kind of actor runs."""
        raise AssertionError("made by a subclass")

    async def process(self) -> "NodeProcess":
        """Returns the placement that this actor was made from, and the process that it is."""
        return self._shell.process()

    async def open_lane(self) -> bytes:
        """Returns an encoded `LaneOffer`: the address of the direct lane, and a ticket for one connection."""
        return self._shell.open_lane()

    async def stop(self) -> None:
        """Stops the node under control. The caller ends the actor afterwards."""
        await self._shell.stop()

    async def stop_broker(self) -> None:
        """Stops the broker of a node that is a controller too. The controller goes on."""
        await self._shell.stop_broker()


def _remote_method(api_name: str) -> "Callable[..., Awaitable[PackedAnswer]]":
    async def method(self: NodeActor, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle(api_name, call)

    method.__name__, method.__qualname__ = api_name, f"{NodeActor.__name__}.{api_name}"
    return method


for _api in APIS:
    setattr(NodeActor, _api.name, _remote_method(_api.name))


class Controller(NodeActor):
    """The actor of a node that is a controller alone."""

    def make_node(self, settings: "NodeSettings") -> "ControllerNode":
        from rayka.node.controller_node import ControllerNode

        return ControllerNode(settings)


class Broker(NodeActor):
    """The actor of a broker, which may be a controller too."""

    def make_node(self, settings: "NodeSettings") -> "BrokerNode | CombinedNode":
        from rayka.node.broker_node import BrokerNode
        from rayka.node.combined_node import CombinedNode

        is_controller = Role.CONTROLLER in self.placement.roles
        return CombinedNode(settings) if is_controller else BrokerNode(settings)


class Coordinator(Broker):
    """The actor of a coordinator, which may be a controller too. The node knows from its settings that it is a
    coordinator.
    """
