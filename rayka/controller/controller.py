"""The active controller's state machine: cluster, topics and leaders (design §2, "One runtime…").

Its replicated state is the metadata image; `replay` is the only thing that changes it. Contact times of brokers, and
the brokers that have just come back, are soft state beside it (H6), and so is how large their directories are and how
much they have to do: losing it costs time only. The node calls
`on_heartbeat` and `on_exit` for those; what is done from time to time is done by its timers (`controller_timers`).

Kafka: `QuorumController` with its `ClusterControlManager`, `ReplicationControlManager`,
`ConfigurationControlManager`, `ProducerIdControlManager`.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import msgspec

from rayka.config import BrokerConfig
from rayka.controller.alter_partition import alter_partitions
from rayka.controller.assigned_directories import assign_replicas
from rayka.controller.balancer.badly_off import BadlyOff
from rayka.controller.balancer.balance_requests import balance, cancel_balance, describe_balance
from rayka.controller.balancer.balance_run import BalanceRun
from rayka.controller.balancer.gone_brokers import GoneBrokers
from rayka.controller.balancer.heal_story import HealStory
from rayka.controller.balancer.looks import look_after_replicas
from rayka.controller.balancer.planned_moves import PlannedMoves
from rayka.controller.balancing import balance_brokers, balance_leaders, balance_returned, elect_leaderless
from rayka.controller.broker_loads import BrokerLoads
from rayka.controller.configuration_control import alter_configs, bootstrap_configs, describe_configs
from rayka.controller.controller_timers import (
    BalanceBrokers,
    BalanceLeaders,
    BalanceReturned,
    ControllerTimers,
    ElectLeaderless,
    FenceStaleBroker,
    LookAfterReplicas,
    ShareWithCoordinators,
    SweepBrokers,
    WriteNoOp,
)
from rayka.controller.coordinator_shares import share_with_coordinators
from rayka.controller.create_partitions import create_partitions
from rayka.controller.decided_events import describe_events, record_event
from rayka.controller.describe_load import describe_load
from rayka.controller.directory_sizes import DirectorySizes
from rayka.controller.elect_leaders import elect_leaders
from rayka.controller.heartbeats import (
    exited_broker,
    fence_stale_broker,
    heartbeat,
    report_exit,
    sweep_brokers,
)
from rayka.controller.producer_id_blocks import allocate_producer_ids
from rayka.controller.reassignment import alter_reassignments, list_reassignments
from rayka.controller.registration import register
from rayka.controller.replica_index import ReplicaIndex
from rayka.controller.request_context import RequestContext
from rayka.controller.returned_brokers import ReturnedBrokers
from rayka.controller.sessions import BrokerSessions
from rayka.controller.topic_control import create_topics, delete_topics
from rayka.controller.unregister import unregister_broker
from rayka.errors import ApiError, NotController, UnsupportedVersion
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.image_snapshot import image_records
from rayka.metadata.metadata_records import (
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    METADATA_VERSION_MIN,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from rayka.metadata.response import metadata_steps
from rayka.protocol.balance import BalanceRequest, CancelBalanceRequest, DescribeBalanceRequest
from rayka.protocol.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from rayka.protocol.events import DescribeEventsRequest, RecordEventRequest
from rayka.protocol.load import DescribeLoadRequest
from rayka.protocol.membership import (
    HeartbeatRequest,
    MetadataRequest,
    MetadataResponse,
    RegisterBrokerRequest,
)
from rayka.protocol.partition_admin import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
)
from rayka.protocol.producer_ids import AllocateProducerIdsRequest
from rayka.protocol.replica_reports import (
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    ReportExitRequest,
)
from rayka.protocol.topics import CreateTopicsRequest, DeleteTopicsRequest
from rayka.shard.shard import NotHere, Result, Steps
from rayka.shard.timers import Timer


class BootstrapMetadata(msgspec.Struct, frozen=True):
    """Asked by a new active controller before anything else: an empty log gets its first records (A67)."""


class Controller:
    """Decides on the image; see `Shard` for the contract of `handle` and `replay`."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        config: BrokerConfig,
        random: Random,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._config = config
        self._random = random
        self._wall_clock_ms = wall_clock_ms
        self._sessions = BrokerSessions(config.broker_session_timeout_ms)
        self._returned = ReturnedBrokers(config)
        self._timers = ControllerTimers(config)
        self._delta = MetadataDelta(MetadataImage())
        self._replicas = ReplicaIndex()
        self._sizes = DirectorySizes()
        self._loads = BrokerLoads()
        self._gone = GoneBrokers()
        self._moves = PlannedMoves()
        self._heal_story = HealStory()
        self._balance = BalanceRun()
        self._badly_off = BadlyOff()

    def __repr__(self) -> str:
        return f"<Controller {self._node_id} of {self._cluster_id} {self._delta!r}>"

    def handle(
        self, request: Any, *, now_ms: int, next_offset: int
    ) -> Result[MetadataRecord, Any] | Steps[MetadataRecord, Any]:
        context = RequestContext(
            self.image(next_offset), now_ms, self._wall_clock_ms, self._cluster_id, self._node_id, self._config,
            self._random, self._replicas, self._sessions, self._returned, self._timers, self._sizes, self._loads,
            self._gone, self._moves, self._heal_story, self._balance, self._badly_off,
        )  # fmt: skip
        return _HANDLERS[type(request)](context, request)

    def replay(self, record: MetadataRecord, offset: int) -> None:
        self._delta.replay(record)
        # In a snapshot the registration itself says so; its offset is the snapshot's, which is late enough.
        if (
            isinstance(record, BrokerRegistrationChangeRecord | RegisterBrokerRecord)
            and record.is_in_controlled_shutdown
        ):
            self._sessions.on_controlled_shutdown(record.broker_id, offset)
        if isinstance(record, BrokerRegistrationChangeRecord) and record.is_fenced is False:
            self._returned.on_unfenced(record.broker_id)
            self._gone.on_unfenced(record.broker_id)
            self._moves.on_unfenced()
        if isinstance(record, UnregisterBrokerRecord):
            self._returned.on_unregistered(record.broker_id)
            self._badly_off.on_unregistered(record.broker_id)

    def snapshot(self, next_offset: int) -> Iterable[MetadataRecord]:
        return image_records(self.image(next_offset))

    def not_here(self, why: NotHere) -> ApiError:
        return NotController(why.reason, why.leader_id, why.leader_epoch, may_have_run=why.may_have_run)

    def image(self, next_offset: int) -> MetadataImage:
        """The image of everything replayed: up to `next_offset`, or a part of the batch that begins there."""
        if self._delta.image.next_offset != next_offset or not self._delta.is_empty:
            image = self._delta.apply(next_offset)
            self._replicas.update(self._delta, image)
            self._delta = MetadataDelta(image)
        return self._delta.image

    # ---- Soft state --------------------------------------------------------------------------------------------------

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterable[Timer]:
        """This controller decides from here on; every broker that is not fenced counts as just contacted (A67)."""
        self._sessions.on_active(next_offset)
        image = self.image(next_offset)
        brokers = image.brokers
        self._returned.on_active(brokers)
        self._gone.on_active(now_ms)
        self._moves = PlannedMoves.of_reassigned(image, self._replicas.reassigned)
        self._balance, self._badly_off = BalanceRun.resumed(image), BadlyOff.of(image)
        self._sessions.sweep(brokers, late_ms=0, now_ms=now_ms)
        return [*self._timers.first(now_ms, next_offset), *self._timers.shares(brokers.values(), now_ms)]

    def on_heartbeat(self, request: HeartbeatRequest, *, now_ms: int, next_offset: int) -> None:
        """A broker is alive, unless the heartbeat is of an older process of it: `handle` will say so."""
        brokers = self.image(next_offset).brokers
        broker = brokers.get(request.broker_id)
        if broker is not None and broker.broker_epoch == request.broker_epoch:
            if request.load is not None and not self._sessions.is_late(broker, request.number):
                self._loads.on_report(broker, request.load, now_ms)
                self._loads.retain(brokers)
            self._sessions.touch(
                broker,
                metadata_offset=request.current_metadata_offset,
                number=request.number,
                now_ms=now_ms,
            )
            counts = self._replicas.of(broker.broker_id).directories
            self._sizes.on_heartbeat(broker, request.directory_size_bytes, counts)

    def on_exit(self, request: ReportExitRequest, *, next_offset: int) -> None:
        """The process of a broker has ended; what it sent before and comes late does not count."""
        broker = exited_broker(self.image(next_offset), request)
        if broker is not None:
            self._sessions.end(broker)


def _bootstrap(context: RequestContext, _: BootstrapMetadata) -> Result[MetadataRecord, None]:
    version = context.image.metadata_version
    if version == 0:
        levels = {METADATA_VERSION: METADATA_VERSION_MAX, ELIGIBLE_LEADER_REPLICAS: 1}
        features = [FeatureLevelRecord(name=name, level=level) for name, level in levels.items()]
        return Result([*features, *bootstrap_configs(context.config)], None)
    if not METADATA_VERSION_MIN <= version <= METADATA_VERSION_MAX:
        raise UnsupportedVersion(
            f"the cluster is at metadata.version {version}, this controller knows "
            f"{METADATA_VERSION_MIN} to {METADATA_VERSION_MAX}; upgrade it"
        )
    return Result((), None)


def _write_no_op(context: RequestContext, request: WriteNoOp) -> Result[MetadataRecord, None]:
    next_offset = context.image.next_offset
    records = [NoOpRecord()] if next_offset == request.next_offset else []
    return Result(records, None, context.timers.no_ops(context.now_ms, next_offset + len(records)))


def _metadata(context: RequestContext, request: MetadataRequest) -> Steps[MetadataRecord, MetadataResponse]:
    response = yield from metadata_steps(
        context.image, request, cluster_id=context.cluster_id, controller_id=context.node_id
    )
    return Result((), response)


_Handler = Callable[[RequestContext, Any], Result[MetadataRecord, Any] | Steps[MetadataRecord, Any]]
_HANDLERS: Mapping[type[Any], _Handler] = {
    BootstrapMetadata: _bootstrap,
    ElectLeaderless: elect_leaderless,
    WriteNoOp: _write_no_op,
    FenceStaleBroker: fence_stale_broker,
    SweepBrokers: sweep_brokers,
    BalanceBrokers: balance_brokers,
    BalanceReturned: balance_returned,
    BalanceLeaders: balance_leaders,
    LookAfterReplicas: look_after_replicas,
    ShareWithCoordinators: share_with_coordinators,
    RegisterBrokerRequest: register,
    HeartbeatRequest: heartbeat,
    ReportExitRequest: report_exit,
    AlterPartitionRequest: alter_partitions,
    AssignReplicasToDirsRequest: assign_replicas,
    CreateTopicsRequest: create_topics,
    DeleteTopicsRequest: delete_topics,
    CreatePartitionsRequest: create_partitions,
    AlterPartitionReassignmentsRequest: alter_reassignments,
    ListPartitionReassignmentsRequest: list_reassignments,
    ElectLeadersRequest: elect_leaders,
    UnregisterBrokerRequest: unregister_broker,
    DescribeConfigsRequest: describe_configs,
    DescribeLoadRequest: describe_load,
    DescribeEventsRequest: describe_events,
    RecordEventRequest: record_event,
    BalanceRequest: balance,
    DescribeBalanceRequest: describe_balance,
    CancelBalanceRequest: cancel_balance,
    IncrementalAlterConfigsRequest: alter_configs,
    AllocateProducerIdsRequest: allocate_producer_ids,
    MetadataRequest: _metadata,
}
