"""What `Broker` and `Controller` share: one remote method for each API, handed to the shell in one line.

The arguments are what `rayka.actors.payload` makes of a call. An API that the node does not serve is refused by its
inbox. `tests/ray` checks that no API of `rayka.protocol.apis` is missing.

Ray imports the class of an actor in every process that looks the actor up. So what only the actor's own process needs,
the node above all, is imported when the actor is made: a command or a client would pay for it at its first call.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayka.actors.payload import PackedAnswer
    from rayka.actors.placement import Placement
    from rayka.actors.shell import NodeProcess, StartableNode
    from rayka.node.settings import NodeSettings
    from rayka.protocol.wire import Payload


class NodeActor:
    """One node as an actor; `ray.remote` is applied in `rayka.actors.launch`."""

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

    async def stop(self) -> None:
        """Stops the node under control. The actor is to be ended then."""
        await self._shell.stop()

    async def stop_broker(self) -> None:
        """The broker's part of `stop`, where the node is a controller too, which goes on."""
        await self._shell.stop_broker()

    async def produce(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("produce", call)

    async def fetch(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("fetch", call)

    async def list_offsets(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("list_offsets", call)

    async def init_producer_id(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("init_producer_id", call)

    async def metadata(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("metadata", call)

    async def create_topics(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("create_topics", call)

    async def delete_topics(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("delete_topics", call)

    async def register_broker(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("register_broker", call)

    async def heartbeat(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("heartbeat", call)

    async def allocate_producer_ids(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("allocate_producer_ids", call)

    async def status(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("status", call)

    async def vote(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("vote", call)

    async def begin_quorum_epoch(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("begin_quorum_epoch", call)

    async def end_quorum_epoch(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("end_quorum_epoch", call)

    async def fetch_snapshot(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("fetch_snapshot", call)

    async def describe_quorum(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("describe_quorum", call)

    async def add_raft_voter(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("add_raft_voter", call)

    async def remove_raft_voter(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("remove_raft_voter", call)

    async def update_raft_voter(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("update_raft_voter", call)

    async def alter_partition(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("alter_partition", call)

    async def report_exit(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("report_exit", call)

    async def create_partitions(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("create_partitions", call)

    async def alter_partition_reassignments(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("alter_partition_reassignments", call)

    async def list_partition_reassignments(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("list_partition_reassignments", call)

    async def elect_leaders(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("elect_leaders", call)

    async def unregister_broker(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("unregister_broker", call)

    async def delete_records(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("delete_records", call)

    async def describe_log_dirs(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("describe_log_dirs", call)

    async def describe_configs(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("describe_configs", call)

    async def incremental_alter_configs(self, *call: "Payload") -> "PackedAnswer":
        return await self._shell.handle("incremental_alter_configs", call)
