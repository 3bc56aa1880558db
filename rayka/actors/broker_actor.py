"""The `Broker` actor: a broker node on Ray, or one that is a coordinator or a controller too.

The nodes are imported late; see `node_actor`.
"""

from typing import TYPE_CHECKING

from rayka.actors.node_actor import NodeActor
from rayka.ids import Role

if TYPE_CHECKING:
    from rayka.node.broker_node import BrokerNode
    from rayka.node.combined_node import CombinedNode
    from rayka.node.settings import NodeSettings


class Broker(NodeActor):
    """A broker as an actor."""

    def make_node(self, settings: "NodeSettings") -> "BrokerNode | CombinedNode":
        from rayka.node.broker_node import BrokerNode
        from rayka.node.combined_node import CombinedNode

        is_controller = Role.CONTROLLER in self.placement.roles
        return CombinedNode(settings) if is_controller else BrokerNode(settings)
