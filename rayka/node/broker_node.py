"""A broker: the node that holds partitions, takes produced records and answers fetches.

Each API has one handler, request to response; a request that is refused as a whole raises ApiError. Life (H1): `start`
locks the data directories, registers, follows the metadata until it knows of its own registration, recovers its logs,
and returns when the controller lets it serve. `stop` is a controlled shutdown that leaves clean directories; `kill`
leaves them as a killed process does. Before and after, every API but `status` is answered with BROKER_NOT_AVAILABLE.
Kafka: `BrokerServer`, `KafkaApis`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from rayka.coordinator.group_shard import group_shard_type
from rayka.errors import BrokerNotAvailable, InvariantBroken
from rayka.ids import node_name
from rayka.log.log_directory import LogDirectory
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.node.broker_lifecycle import BrokerLifecycle
from rayka.node.controller_link import ControllerLink, EventReports
from rayka.node.data_directories import DataDirectories
from rayka.node.fetch_handler import FetchHandler, ListOffsetsHandler
from rayka.node.group_handler import GroupHandler
from rayka.node.hosted_shards import HostedShards
from rayka.node.inbox import Response
from rayka.node.load_meter import LoadMeter
from rayka.node.metadata_follower import MetadataFollower
from rayka.node.produce_handler import ProduceHandler, ProducerIdHandler, expire_producers
from rayka.node.replica_admin import DeleteRecordsHandler, LogDirsHandler
from rayka.node.replica_changes import ReplicaChanges
from rayka.node.replica_manager import ReplicaManager
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Tasks
from rayka.ports import Request
from rayka.protocol.apis import API_BY_NAME, ServedBy
from rayka.protocol.membership import NodeState, StatusRequest, StatusResponse
from rayka.protocol.produce import ProduceRequest
from rayka.protocol.topics import NewTopic

_APIS_OF_ONE_GROUP = (
    "join_group", "sync_group", "group_heartbeat", "leave_group", "offset_fetch", "offset_delete",
)  # fmt: skip
_EVENT_TIMEOUT_MS = 2_000
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of a broker whose directories are open."""

    directories: DataDirectories
    replicas: ReplicaManager
    changes: ReplicaChanges
    follower: MetadataFollower
    lifecycle: BrokerLifecycle
    meter: LoadMeter
    events: EventReports
    shards: HostedShards
    groups: GroupHandler
    produces: ProduceHandler
    # By the type of the request.
    handlers: Mapping[type[Any], Callable[[Any], Response]]


class BrokerNode:
    """One broker in one process; `settings.data_dirs` are its directories, formatted before."""

    serves = ServedBy.BROKER

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self._name = node_name(settings.node_id)
        self._tasks = Tasks(settings.crash)
        self.state = NodeState.STARTING
        self._parts: BrokerParts | None = None

    def __repr__(self) -> str:
        return f"<BrokerNode {self._name} {self.state}>"

    @property
    def observed(self) -> BrokerParts | None:
        """The parts, for checkers to read; None while the directories are not open."""
        return self._parts

    # ---- Life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the broker serves.

        Raises StorageError when a directory cannot be used, the ApiError with which the controller refused
        the broker, UnavailableError when there is no controller. Then `stop` gives the directories back.
        """
        parts = self._parts = self._make_parts(await DataDirectories.open(self.settings))
        registered = await parts.lifecycle.register()
        await parts.directories.on_registered(registered.cluster_id, registered.broker_epoch)
        self.state = NodeState.RECOVERY
        first_image_offset = registered.broker_epoch + 1
        self._tasks.start("metadata", parts.follower.run(registered.cluster_id, first_image_offset))
        self._tasks.start("heartbeats", parts.lifecycle.run())
        self._tasks.start("load", parts.meter.run())
        self._tasks.start("expiry of producers", expire_producers(parts.replicas, self.settings.config))
        self._tasks.start("disks", self._report_disks(parts))
        self._tasks.start("events", parts.events.run())
        await parts.follower.wait_for_first_image()
        await parts.lifecycle.unfence()
        self.state = NodeState.RUNNING
        _logger.info("%r serves %d partitions", self, len(parts.replicas.partitions))

    def _make_parts(self, directories: DataDirectories) -> BrokerParts:
        settings = self.settings
        link = ControllerLink(settings.network)
        replicas = ReplicaManager(settings, directories, link, self._tasks)
        follower = MetadataFollower(settings, link, self._publish)
        meter = LoadMeter(settings, directories, replicas)
        lifecycle = BrokerLifecycle(settings, link, directories, follower, meter)
        group_type = group_shard_type(settings.config, settings.random, settings.wall_clock_ms)
        hosting = replace(settings, shard_types=(*settings.shard_types, group_type))
        shards = HostedShards(hosting, replicas, self._tasks)
        groups = GroupHandler(group_type.topic, shards, lifecycle, follower)
        produces = ProduceHandler(replicas, settings.wall_clock_ms)
        log_dirs = LogDirsHandler(replicas)
        handlers: dict[str, Callable[[Any], Response]] = {
            "produce": produces.handle,
            "init_producer_id": ProducerIdHandler(lifecycle).handle,
            "fetch": FetchHandler(replicas).handle,
            "list_offsets": ListOffsetsHandler(replicas).handle,
            "delete_records": DeleteRecordsHandler(replicas).handle,
            "describe_log_dirs": log_dirs.describe,
            "alter_replica_log_dirs": log_dirs.alter,
            "metadata": follower.answer,
            "describe_events": follower.events,
            "offset_commit": groups.commit,
            "find_coordinator": groups.find,
            "list_groups": groups.list_groups,
            "describe_groups": groups.describe_groups,
            "delete_groups": groups.delete_groups,
            **dict.fromkeys(_APIS_OF_ONE_GROUP, groups.of_group),
        }
        return BrokerParts(
            directories,
            replicas,
            ReplicaChanges(replicas, self._tasks),
            follower,
            lifecycle,
            meter,
            EventReports(lambda request: link.call(request, _EVENT_TIMEOUT_MS), settings.wall_clock_ms),
            shards,
            groups,
            produces,
            {API_BY_NAME[name].request_type: handle for name, handle in handlers.items()},
        )

    async def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Applies new metadata. A broker that shuts down waits until all others know where its leads went, so the
        others say at once how far they are (H5).
        """
        parts = self._parts
        if parts is None:
            raise InvariantBroken(f"{self!r} is not open")
        await parts.changes.apply(delta, image)
        parts.shards.update(image)
        parts.groups.forget_topics(delta.deleted_names())
        if any(each.is_in_controlled_shutdown and not each.is_fenced for each in image.brokers.values()):
            parts.lifecycle.wake()

    async def stop(self) -> None:
        """Shuts down in a controlled way: the controller moves leads away, then all logs are synced and marked clean
        (B30).
        """
        parts, has_served = self._parts, self.state is NodeState.RUNNING
        self.state = NodeState.SHUTTING_DOWN
        if parts is None:
            return
        if has_served:
            await parts.lifecycle.shut_down()
        parts.produces.append_due()
        parts.replicas.parked.close(f"{self._name} is shutting down")
        await self._tasks.stop()
        parts.shards.close()
        self._parts = None
        if has_served:
            await parts.directories.close(parts.replicas.logs.high_watermarks)
        else:
            parts.directories.release()

    def kill(self) -> None:
        """Ends as a killed process does: writes and answers nothing any more, and releases the locks."""
        self._tasks.abandon()
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.produces.abandon()
            parts.shards.abandon()
            parts.directories.release()

    async def _report_disks(self, parts: BrokerParts) -> None:
        """Wakes the heartbeat when the state of a directory changes. Reports an event of a full directory that is not
        offline: the controller records only offline directories.
        """
        told: dict[LogDirectory, None] = {}
        while True:
            await parts.directories.changed.wait()
            parts.directories.changed.clear()
            parts.lifecycle.wake()
            for each in parts.directories.all:
                is_full = each.full is not None and each.failure is None
                if is_full and each not in told and not each.is_reported_offline:
                    told[each] = None
                    reason = f"{each.path} takes no writes: {each.full}; what is there is read"
                    parts.events.tell("disk-full", (self.settings.node_id,), reason)
                elif each in told and not is_full:
                    del told[each]
                    if each.failure is None:
                        reason = f"{each.path} takes writes again"
                        parts.events.tell("disk-online", (self.settings.node_id,), reason)

    # ---- Requests --------------------------------------------------------------------------------------

    def handle(self, request: Request[Any]) -> Response:
        """The outcome of the API's handler. It is not awaited here: that would keep the records of a produce."""
        if isinstance(request, StatusRequest):
            return self._status()
        parts = self._parts
        if parts is None or self.state is not NodeState.RUNNING:
            parts = self._serving()
        if not isinstance(request, ProduceRequest):
            # The request finds all records in the log that came before it.
            parts.produces.append_due()
        return parts.handlers[type(request)](request)

    async def _status(self) -> StatusResponse:
        """The status of this node, in whatever state it is."""
        status, parts = self.settings.status(self.state, self.settings.roles), self._parts
        if parts is None:
            return status
        return msgspec.structs.replace(
            status,
            cluster_id=parts.directories.cluster_id,
            incarnation_id=parts.lifecycle.incarnation_id,
            detail="; ".join(parts.replicas.problems()),
            partition_count=len(parts.replicas.partitions),
            size_bytes=sum(each.log.segments.size_bytes for each in parts.replicas.partitions),
            offline_data_dirs=parts.directories.offline_paths(),
            full_data_dirs=parts.directories.full_paths(),
        )

    # ---- State machines of the cluster ---------------------------------------------------------------------

    @property
    def shards(self) -> HostedShards:
        """The state machines that are hosted here. Raises BrokerNotAvailable."""
        return self._serving().shards

    async def create_internal_topic(self, topic: NewTopic) -> None:
        """Returns when the topic is there. Raises the ApiError that refuses it."""
        await self._serving().lifecycle.create_internal_topic(topic)

    def _serving(self) -> BrokerParts:
        if self._parts is None or self.state in (NodeState.STARTING, NodeState.RECOVERY):
            raise BrokerNotAvailable(f"{self._name} is {self.state}; try again soon")
        return self._parts
