"""The `Controller` actor: a controller node on Ray. The node is imported late; see `node_actor`."""

from typing import TYPE_CHECKING

from rayka.actors.node_actor import NodeActor

if TYPE_CHECKING:
    from rayka.node.controller_node import ControllerNode
    from rayka.node.settings import NodeSettings


class Controller(NodeActor):
    """A controller voter as an actor."""

    def make_node(self, settings: "NodeSettings") -> "ControllerNode":
        from rayka.node.controller_node import ControllerNode

        return ControllerNode(settings)
