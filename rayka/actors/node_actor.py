"""What `Broker` and `Controller` share: one remote method for each API, handed to the shell in one line.

The arguments are a call's header, its request, and the pieces of its records. An API that the node does not serve is
refused by its inbox. `tests/ray` checks that no API of `rayka.protocol.apis` is missing.
"""

from rayka.actors.placement import Placement
from rayka.actors.shell import NodeProcess, NodeShell, StartableNode
from rayka.node.settings import NodeSettings
from rayka.protocol.caller import Answer
from rayka.protocol.wire import Payload


class NodeActor:
    """One node as an actor; `ray.remote` is applied in `rayka.actors.launch`."""

    async def __init__(self, placement: Placement) -> None:  # type: ignore[misc]
        self.placement = placement
        self._shell = NodeShell(self.make_node, placement)

    def make_node(self, settings: NodeSettings) -> StartableNode:
        """The node that this kind of actor runs."""
        raise AssertionError("made by a subclass")

    async def process(self) -> NodeProcess:
        """What this actor was made from and which process it is."""
        return self._shell.process()

    async def stop(self) -> None:
        """Stops the node under control. The actor is to be ended then."""
        await self._shell.stop()

    async def stop_broker(self) -> None:
        """The broker's part of `stop`, where the node is a controller too, which goes on."""
        await self._shell.stop_broker()

    async def produce(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("produce", header, request, records)

    async def fetch(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("fetch", header, request, records)

    async def list_offsets(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("list_offsets", header, request, records)

    async def init_producer_id(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("init_producer_id", header, request, records)

    async def metadata(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("metadata", header, request, records)

    async def create_topics(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("create_topics", header, request, records)

    async def delete_topics(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("delete_topics", header, request, records)

    async def register_broker(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("register_broker", header, request, records)

    async def heartbeat(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("heartbeat", header, request, records)

    async def allocate_producer_ids(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("allocate_producer_ids", header, request, records)

    async def status(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("status", header, request, records)

    async def vote(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("vote", header, request, records)

    async def begin_quorum_epoch(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("begin_quorum_epoch", header, request, records)

    async def end_quorum_epoch(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("end_quorum_epoch", header, request, records)

    async def fetch_snapshot(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("fetch_snapshot", header, request, records)

    async def describe_quorum(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("describe_quorum", header, request, records)

    async def add_raft_voter(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("add_raft_voter", header, request, records)

    async def remove_raft_voter(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("remove_raft_voter", header, request, records)

    async def update_raft_voter(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("update_raft_voter", header, request, records)

    async def alter_partition(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("alter_partition", header, request, records)

    async def report_exit(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("report_exit", header, request, records)

    async def create_partitions(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("create_partitions", header, request, records)

    async def alter_partition_reassignments(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("alter_partition_reassignments", header, request, records)

    async def list_partition_reassignments(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("list_partition_reassignments", header, request, records)

    async def elect_leaders(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("elect_leaders", header, request, records)

    async def unregister_broker(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("unregister_broker", header, request, records)

    async def delete_records(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("delete_records", header, request, records)

    async def describe_log_dirs(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("describe_log_dirs", header, request, records)

    async def describe_configs(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("describe_configs", header, request, records)

    async def incremental_alter_configs(self, header: bytes, request: bytes, *records: Payload) -> Answer:
        return await self._shell.handle("incremental_alter_configs", header, request, records)
