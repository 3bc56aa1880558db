"""The `Broker` actor: a broker node on Ray."""

from rayka.actors.node_actor import NodeActor
from rayka.node.broker_node import BrokerNode
from rayka.node.settings import NodeSettings


class Broker(NodeActor):
    """A broker as an actor."""

    def make_node(self, settings: NodeSettings) -> BrokerNode:
        return BrokerNode(settings)
