"""The `Broker` actor: a broker node on Ray, or one that is a controller too."""

from rayka.actors.node_actor import NodeActor
from rayka.ids import Role
from rayka.node.broker_node import BrokerNode
from rayka.node.combined_node import CombinedNode
from rayka.node.settings import NodeSettings


class Broker(NodeActor):
    """A broker as an actor."""

    def make_node(self, settings: NodeSettings) -> BrokerNode | CombinedNode:
        is_controller = Role.CONTROLLER in self.placement.roles
        return CombinedNode(settings) if is_controller else BrokerNode(settings)
