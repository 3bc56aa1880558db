"""The active controller's state machine: cluster, topics and leaders (design §2, "One runtime…").

Its replicated state is the metadata image; `replay` is the only thing that changes it. Contact times of brokers, and
the brokers that have just come back, are soft state beside it (H6): losing it costs time only. The node calls
`on_heartbeat` and `on_exit` for those; what is done from time to time is done by its timers (`controller.timers`).

Kafka: `QuorumController` with its `ClusterControlManager`, `ReplicationControlManager`,
`ConfigurationControlManager`, `ProducerIdControlManager`.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import msgspec

from rayka.config import BrokerConfig
from rayka.controller.alter_partition import alter_partitions
from rayka.controller.balancing import ReturnedBrokers, balance_leaders, elect_leaderless
from rayka.controller.configuration_control import alter_configs, bootstrap_configs, describe_configs
from rayka.controller.controller_timers import (
    BalanceBrokers,
    BalanceLeaders,
    BalanceReturned,
    ControllerTimers,
    ElectLeaderless,
    FenceStaleBroker,
    SweepBrokers,
    WriteNoOp,
    with_timers,
)
from rayka.controller.create_partitions import create_partitions
from rayka.controller.elect_leaders import elect_leaders
from rayka.controller.heartbeats import exited_broker, fence, heartbeat, report_exit
from rayka.controller.leader_elections import Elections
from rayka.controller.producer_id_blocks import allocate_producer_ids
from rayka.controller.reassignment import alter_reassignments, list_reassignments
from rayka.controller.registration import check_registration, register
from rayka.controller.replica_index import ReplicaIndex
from rayka.controller.replica_placement import ReplicaPlacer
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
)
from rayka.metadata.response import metadata_response
from rayka.protocol.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from rayka.protocol.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from rayka.protocol.partition_admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from rayka.protocol.producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from rayka.protocol.replica_reports import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ReportExitRequest,
    ReportExitResponse,
)
from rayka.protocol.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from rayka.shard.shard import NotHere, Result, Steps
from rayka.shard.timers import Timer


class BootstrapMetadata(msgspec.Struct, frozen=True):
    """Asked by a new active controller before anything else: an empty log gets its first records (A67)."""


class Controller:
    """Decides on the image; see `Shard` for the contract of `handle` and `replay`."""

    def __init__(self, *, cluster_id: str, node_id: int, config: BrokerConfig, random: Random) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._config = config
        self._random = random
        self._sessions = BrokerSessions(config.broker_session_timeout_ms)
        self._returned = ReturnedBrokers(config)
        self._timers = ControllerTimers(config)
        self._delta = MetadataDelta(MetadataImage())
        self._replicas = ReplicaIndex()

    def __repr__(self) -> str:
        return f"<Controller {self._node_id} of {self._cluster_id} {self._delta!r}>"

    def handle(
        self, request: Any, *, now_ms: int, next_offset: int
    ) -> Result[MetadataRecord, Any] | Steps[MetadataRecord, Any]:
        image = self.image(next_offset)
        return _HANDLERS[type(request)](self, request, image, now_ms)

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

    def _elections(self, image: MetadataImage) -> Elections:
        return Elections(image, self._config, self._replicas)

    def _placer(self, image: MetadataImage) -> ReplicaPlacer:
        return ReplicaPlacer(image, self._random, self._replicas)

    # ---- Soft state --------------------------------------------------------------------------------------------------

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterable[Timer]:
        """This controller decides from here on; every broker that is not fenced counts as just contacted (A67)."""
        self._sessions.on_active(next_offset)
        self._returned.on_active(self.image(next_offset).brokers)
        self.on_sweep(now_ms=now_ms, next_offset=next_offset)
        return self._timers.first(now_ms, next_offset)

    def on_heartbeat(self, request: HeartbeatRequest, *, now_ms: int, next_offset: int) -> None:
        """A broker is alive, unless the heartbeat is of an older process of it: `handle` will say so."""
        broker = self.image(next_offset).brokers.get(request.broker_id)
        if broker is not None and broker.broker_epoch == request.broker_epoch:
            self._sessions.touch(
                broker,
                metadata_offset=request.current_metadata_offset,
                number=request.number,
                now_ms=now_ms,
            )

    def on_exit(self, request: ReportExitRequest, *, next_offset: int) -> None:
        """The process of a broker has ended; what it sent before and comes late does not count."""
        broker = exited_broker(self.image(next_offset), request)
        if broker is not None:
            self._sessions.end(broker)

    def on_sweep(self, *, now_ms: int, next_offset: int, late_ms: int = 0) -> None:
        """Before stale brokers are looked for: those that count as alive, though never heard of in their epoch, count
        as just contacted. A sweep that comes late extends all sessions by that time.
        """
        self._sessions.extend(late_ms, now_ms)
        self._sessions.begin(self.image(next_offset).brokers, now_ms)

    def take_returned(self, *, now_ms: int, next_offset: int) -> list[int]:
        """Brokers that are back and can take leads now, for a request `BalanceLeaders` each."""
        return self._returned.take_due(self._elections(self.image(next_offset)), now_ms)

    # ---- Requests ----------------------------------------------------------------------------------------------------

    def _bootstrap(
        self, _: BootstrapMetadata, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, None]:
        if image.metadata_version == 0:
            levels = {METADATA_VERSION: METADATA_VERSION_MAX, ELIGIBLE_LEADER_REPLICAS: 1}
            features = [FeatureLevelRecord(name=name, level=level) for name, level in levels.items()]
            return Result([*features, *bootstrap_configs(self._config)], None)
        if not METADATA_VERSION_MIN <= image.metadata_version <= METADATA_VERSION_MAX:
            raise UnsupportedVersion(
                f"the cluster is at metadata.version {image.metadata_version}, this controller knows "
                f"{METADATA_VERSION_MIN} to {METADATA_VERSION_MAX}; upgrade it"
            )
        return Result((), None)

    def _register(
        self, request: RegisterBrokerRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, RegisterBrokerResponse]:
        check_registration(
            image, request, cluster_id=self._cluster_id, sessions=self._sessions, now_ms=now_ms
        )
        registered = yield from register(self._elections(image), request)
        return Result(registered.records, RegisterBrokerResponse(registered.response, self._cluster_id))

    def _heartbeat(
        self, request: HeartbeatRequest, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, HeartbeatResponse] | Steps[MetadataRecord, HeartbeatResponse]:
        return heartbeat(self._elections(image), request, self._sessions)

    def _report_exit(
        self, request: ReportExitRequest, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, ReportExitResponse] | Steps[MetadataRecord, ReportExitResponse]:
        return report_exit(self._elections(image), request)

    def _alter_partitions(
        self, request: AlterPartitionRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, AlterPartitionResponse]:
        return alter_partitions(self._elections(image), request)

    def _elect_leaderless(
        self, _: ElectLeaderless, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, None]:
        return elect_leaderless(self._elections(image))

    def _balance_leaders(
        self, request: BalanceLeaders, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, bool]:
        steps = balance_leaders(self._elections(image), request.broker_id, self._config)
        return with_timers(
            steps, lambda has_more: self._timers.balances([request.broker_id] * has_more, now_ms)
        )

    def _balance_brokers(
        self, _: BalanceBrokers, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, None]:
        return Result((), None, self._timers.after_balance(image.brokers, now_ms))

    def _balance_returned(
        self, _: BalanceReturned, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, None]:
        broker_ids = self.take_returned(now_ms=now_ms, next_offset=image.next_offset)
        return Result((), None, self._timers.after_returned(broker_ids, now_ms))

    def _sweep_brokers(
        self, request: SweepBrokers, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, None]:
        late_ms = max(0, now_ms - request.due_ms)
        self.on_sweep(now_ms=now_ms, next_offset=image.next_offset, late_ms=late_ms)
        return Result((), None, self._timers.after_sweep(now_ms))

    def _fence_stale_broker(
        self, _: FenceStaleBroker, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, bool] | Steps[MetadataRecord, bool]:
        unfenced = [broker for broker in image.brokers.values() if not broker.is_fenced]
        stale = [broker for broker in unfenced if not self._sessions.is_alive(broker, now_ms)]
        if not stale:
            return Result((), False)
        steps = fence(self._elections(image), stale[0], len(stale) > 1)
        return with_timers(steps, lambda has_more: self._timers.fences(now_ms) if has_more else ())

    def _write_no_op(
        self, request: WriteNoOp, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, None]:
        records = [NoOpRecord()] if image.next_offset == request.next_offset else []
        return Result(records, None, self._timers.no_ops(now_ms, image.next_offset + len(records)))

    def _create_topics(
        self, request: CreateTopicsRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, CreateTopicsResponse]:
        return create_topics(
            image, request, config=self._config, placer=self._placer(image), random=self._random
        )

    def _delete_topics(
        self, request: DeleteTopicsRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, DeleteTopicsResponse]:
        return delete_topics(image, request)

    def _create_partitions(
        self, request: CreatePartitionsRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, CreatePartitionsResponse]:
        return create_partitions(image, request, placer=self._placer(image))

    def _alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, AlterPartitionReassignmentsResponse]:
        elections, placer = self._elections(image), self._placer(image)
        return alter_reassignments(elections, request, config=self._config, placer=placer)

    def _list_reassignments(
        self, request: ListPartitionReassignmentsRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, ListPartitionReassignmentsResponse]:
        return list_reassignments(image, request)

    def _elect_leaders(
        self, request: ElectLeadersRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, ElectLeadersResponse]:
        return elect_leaders(self._elections(image), request)

    def _unregister_broker(
        self, request: UnregisterBrokerRequest, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, UnregisterBrokerResponse]:
        return unregister_broker(image, request, self._replicas)

    def _describe_configs(
        self, request: DescribeConfigsRequest, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, DescribeConfigsResponse]:
        return describe_configs(image, request, config=self._config)

    def _alter_configs(
        self, request: IncrementalAlterConfigsRequest, image: MetadataImage, now_ms: int
    ) -> Steps[MetadataRecord, IncrementalAlterConfigsResponse]:
        return alter_configs(self._elections(image), request, config=self._config)

    def _allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, AllocateProducerIdsResponse]:
        return allocate_producer_ids(image, request)

    def _metadata(
        self, request: MetadataRequest, image: MetadataImage, now_ms: int
    ) -> Result[MetadataRecord, MetadataResponse]:
        response = metadata_response(image, request, cluster_id=self._cluster_id, controller_id=self._node_id)
        return Result((), response)


_Handler = Callable[
    [Controller, Any, MetadataImage, int], Result[MetadataRecord, Any] | Steps[MetadataRecord, Any]
]
_HANDLERS: Mapping[type[Any], _Handler] = {
    BootstrapMetadata: Controller._bootstrap,
    ElectLeaderless: Controller._elect_leaderless,
    WriteNoOp: Controller._write_no_op,
    FenceStaleBroker: Controller._fence_stale_broker,
    SweepBrokers: Controller._sweep_brokers,
    BalanceBrokers: Controller._balance_brokers,
    BalanceReturned: Controller._balance_returned,
    RegisterBrokerRequest: Controller._register,
    HeartbeatRequest: Controller._heartbeat,
    ReportExitRequest: Controller._report_exit,
    AlterPartitionRequest: Controller._alter_partitions,
    BalanceLeaders: Controller._balance_leaders,
    CreateTopicsRequest: Controller._create_topics,
    DeleteTopicsRequest: Controller._delete_topics,
    CreatePartitionsRequest: Controller._create_partitions,
    AlterPartitionReassignmentsRequest: Controller._alter_reassignments,
    ListPartitionReassignmentsRequest: Controller._list_reassignments,
    ElectLeadersRequest: Controller._elect_leaders,
    UnregisterBrokerRequest: Controller._unregister_broker,
    DescribeConfigsRequest: Controller._describe_configs,
    IncrementalAlterConfigsRequest: Controller._alter_configs,
    AllocateProducerIdsRequest: Controller._allocate_producer_ids,
    MetadataRequest: Controller._metadata,
}
