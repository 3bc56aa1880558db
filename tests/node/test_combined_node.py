"""A node that is broker and controller: which of the two a call reaches."""

from rayka.node.broker_node import BrokerNode
from rayka.node.controller_node import ControllerNode
from rayka.protocol.apis import APIS


def test_what_both_nodes_serve_is_what_a_combined_node_tells_apart() -> None:
    """Any other API goes to the one that its row names; `test_hostile_calls` calls every one."""
    both = {
        api.name
        for api in APIS
        if api.served_by & BrokerNode.serves and api.served_by & ControllerNode.serves
    }
    assert both == {"fetch", "metadata", "status", "describe_events"}
