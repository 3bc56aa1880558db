"""The `Controller` actor: a controller node on Ray."""

from rayka.actors.node_actor import NodeActor
from rayka.node.controller_node import ControllerNode
from rayka.node.settings import NodeSettings


class Controller(NodeActor):
    """A controller voter as an actor."""

    def make_node(self, settings: NodeSettings) -> ControllerNode:
        return ControllerNode(settings)
