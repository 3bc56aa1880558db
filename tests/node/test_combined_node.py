"""A node that is broker and controller: which of the two a call reaches."""

from rayka.node.broker_node import BrokerNode
from rayka.node.combined_node import CombinedNode
from rayka.node.controller_node import ControllerNode
from rayka.protocol.apis import APIS


def served_by(node: type) -> set[str]:
    return {api.name for api in APIS if hasattr(node, api.name)}


def test_every_api_that_both_serve_is_told_apart() -> None:
    """Any other API goes to the one that serves it."""
    assert served_by(BrokerNode) & served_by(ControllerNode) == served_by(CombinedNode)
