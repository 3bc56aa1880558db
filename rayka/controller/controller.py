"""The state machine of the controllers: brokers, topics and leaders, as a shard (decision 020).

The replicated state is the metadata image; only `replay` changes the image. Sessions, returned brokers, sizes of
directories, loads and moves are soft state of the active controller (H6): their loss costs only time. The node feeds
the soft state by `on_heartbeat` and `on_exit`. Timers (`controller_timers`) begin periodic work.

Kafka: `QuorumController` with its `ClusterControlManager`, `ReplicationControlManager`,
`ConfigurationControlManager`, `ProducerIdControlManager`.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from random import Random
from typing import Any

import msgspec

from rayka.config.broker_config import BrokerConfig
from rayka.controller import incidents
from rayka.controller.alter_partition import alter_partitions, assign_replicas
from rayka.controller.balance_control import balance, cancel_balance, describe_balance
from rayka.controller.balance_run import BalanceRun, BalanceTrigger
from rayka.controller.broker_loads import BrokerLoads, describe_load
from rayka.controller.configuration_control import alter_configs, bootstrap_configs, describe_configs
from rayka.controller.controller_timers import ControllerTimers, WriteNoOp
from rayka.controller.coordinator_shares import share_with_coordinators
from rayka.controller.decided_events import DecidedEvents, describe_events, record_event
from rayka.controller.directory_sizes import DirectorySizes
from rayka.controller.drain_control import cancel_drain, describe_drains, drain_broker
from rayka.controller.drain_state import DrainState
from rayka.controller.healing_state import AbsenceClocks, Healing
from rayka.controller.heartbeats import (
    exited_broker,
    fence_stale_broker,
    heartbeat,
    registered_broker,
    report_exit,
    sweep_brokers,
)
from rayka.controller.move_control import look_after_replicas
from rayka.controller.move_queue import MoveQueue
from rayka.controller.placeable_directories import all_drains
from rayka.controller.preferred_leaders import (
    elect_all_preferred_leaders,
    elect_leaderless,
    elect_leaders,
    elect_preferred_leaders,
    elect_returned_leaders,
)
from rayka.controller.reassignment import alter_reassignments, list_reassignments
from rayka.controller.registration import register, unregister_broker
from rayka.controller.replica_index import ReplicaIndex
from rayka.controller.request_context import RequestContext
from rayka.controller.returned_brokers import ReturnedBrokers
from rayka.controller.sessions import BrokerSessions
from rayka.controller.topic_control import create_partitions, create_topics, delete_topics
from rayka.errors import ApiError, NotController, UnknownServerError, UnsupportedVersion
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage, metadata_steps
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
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from rayka.protocol.membership import HeartbeatRequest, MetadataRequest, MetadataResponse, ReportExitRequest
from rayka.protocol.produce import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from rayka.shard.shard import NotHere, Result, Steps, Timer

# ---- Blocks of producer ids (C12) ------------------------------------------------------------------------------------
#
# Invariant: each id is in one block, and each block goes to one broker. `next_producer_id` of the image only rises, and
# all ids below it are allocated. Ids that a broker has not handed out at its end are never used. Kafka:
# `ProducerIdControlManager`.


PRODUCER_IDS_PER_BLOCK = 1000
PRODUCER_ID_MAX = 2**63 - 1


def allocate_producer_ids(
    context: RequestContext, request: AllocateProducerIdsRequest
) -> Result[MetadataRecord, AllocateProducerIdsResponse]:
    """Allocates the next block. Raises BrokerIdNotRegistered, StaleBrokerEpoch, UnknownServerError if no id is left."""
    registered_broker(context.image, request.broker_id, request.broker_epoch)
    first = context.image.next_producer_id
    if first > PRODUCER_ID_MAX - PRODUCER_IDS_PER_BLOCK:
        raise UnknownServerError(f"every producer id up to {PRODUCER_ID_MAX} was given away")
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + PRODUCER_IDS_PER_BLOCK,
    )
    return Result([record], AllocateProducerIdsResponse(first, PRODUCER_IDS_PER_BLOCK))


class BootstrapMetadata(msgspec.Struct, frozen=True):
    """Begins the epoch of an active controller, before any other request: writes the event that this controller leads,
    and in an empty log the first records of a cluster before the event (A67).
    """


class Controller:
    """Decides requests on the image; `Shard` has the contract of `handle` and `replay`."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        config: BrokerConfig,
        random: Random,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        moves = MoveQueue()
        self._context = RequestContext(
            MetadataImage(), 0, wall_clock_ms, cluster_id, node_id, config, random, ReplicaIndex(),
            BrokerSessions(config.broker_session_timeout_ms), ReturnedBrokers(config), ControllerTimers(config),
            DirectorySizes(), BrokerLoads(), moves, AbsenceClocks(), Healing(), DrainState(),
            BalanceRun(moves), BalanceTrigger(),
        )  # fmt: skip
        self._delta = MetadataDelta(MetadataImage())

    def __repr__(self) -> str:
        return f"<Controller {self._context.node_id} of {self._context.cluster_id} {self._delta!r}>"

    def handle(
        self, request: Any, *, now_ms: int, next_offset: int
    ) -> Result[MetadataRecord, Any] | Steps[MetadataRecord, Any]:
        context = self._context._replace(image=self.image(next_offset), now_ms=now_ms)
        return _HANDLERS[type(request)](context, request)

    def replay(self, record: MetadataRecord, offset: int) -> None:
        self._delta.replay(record)
        known = self._context
        # In a snapshot the registration record itself has the flag. The offset of the snapshot is late enough.
        if (
            isinstance(record, BrokerRegistrationChangeRecord | RegisterBrokerRecord)
            and record.is_in_controlled_shutdown
        ):
            known.sessions.on_controlled_shutdown(record.broker_id, offset)
        if isinstance(record, BrokerRegistrationChangeRecord) and record.is_fenced is False:
            known.returned.on_unfenced(record.broker_id)
            known.absences.on_unfenced(record.broker_id)
            known.healing.on_unfenced()
        if isinstance(record, UnregisterBrokerRecord):
            known.returned.on_unregistered(record.broker_id)
            known.balance_trigger.on_unregistered(record.broker_id)

    def snapshot(self, next_offset: int) -> Iterable[MetadataRecord]:
        return image_records(self.image(next_offset))

    def not_here(self, why: NotHere) -> ApiError:
        return NotController(why.reason, why.leader_id, why.leader_epoch, may_have_run=why.may_have_run)

    def image(self, next_offset: int) -> MetadataImage:
        """The image of all replayed records: up to `next_offset`, or into the batch that begins there."""
        if self._delta.image.next_offset != next_offset or not self._delta.is_empty:
            image = self._delta.apply(next_offset)
            self._context.replicas.update(self._delta, image)
            self._delta = MetadataDelta(image)
        return self._delta.image

    # ---- Soft state --------------------------------------------------------------------------------------------------

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterable[Timer]:
        """Becomes active: makes the soft state anew. Every unfenced broker counts as just contacted (A67)."""
        image, known = self.image(next_offset), self._context
        known.sessions.on_active(next_offset)
        known.returned.on_active(image.brokers)
        known.absences.on_active(now_ms)
        moves = MoveQueue.of_reassigned(image, known.replicas.reassigned)
        self._context = known._replace(
            moves=moves,
            healing=Healing(),
            drains=DrainState(),
            balance=BalanceRun.resumed(image, moves),
            balance_trigger=BalanceTrigger.of(image),
        )
        known.sessions.sweep(image.brokers, late_ms=0, now_ms=now_ms)
        return [
            *known.timers.first(now_ms, next_offset),
            *known.timers.shares(image.brokers.values(), now_ms),
            *(known.timers.look_now(now_ms) if all_drains(image) else ()),
        ]

    def on_heartbeat(self, request: HeartbeatRequest, *, now_ms: int, next_offset: int) -> None:
        """Takes in a heartbeat: contact, load, sizes. Ignores one of a former process, which `handle` refuses."""
        brokers, known = self.image(next_offset).brokers, self._context
        broker = brokers.get(request.broker_id)
        if broker is not None and broker.broker_epoch == request.broker_epoch:
            if request.load is not None and not known.sessions.is_late(broker, request.number):
                known.loads.on_report(broker, request.load, now_ms, request.started_with)
                known.loads.retain(brokers)
            known.sessions.touch(
                broker,
                metadata_offset=request.current_metadata_offset,
                number=request.number,
                now_ms=now_ms,
            )
            counts = known.replicas.of(broker.broker_id).directories
            known.sizes.on_heartbeat(broker, request.directory_size_bytes, counts)

    def on_exit(self, request: ReportExitRequest, *, next_offset: int) -> None:
        """Records that a broker's process has ended: its late heartbeats do not count."""
        broker = exited_broker(self.image(next_offset), request)
        if broker is not None:
            self._context.sessions.end(broker)


def _bootstrap(context: RequestContext, _: BootstrapMetadata) -> Result[MetadataRecord, None]:
    version = context.image.metadata_version
    events = DecidedEvents(context, is_first=version == 0)
    leads = events.records(incidents.controller_leads(context.image, context.node_id))
    if version == 0:
        levels = {METADATA_VERSION: METADATA_VERSION_MAX, ELIGIBLE_LEADER_REPLICAS: 1}
        features = [FeatureLevelRecord(name=name, level=level) for name, level in levels.items()]
        return Result([*features, *bootstrap_configs(context.config), *leads], None)
    if not METADATA_VERSION_MIN <= version <= METADATA_VERSION_MAX:
        raise UnsupportedVersion(
            f"the cluster is at metadata.version {version}, this controller knows "
            f"{METADATA_VERSION_MIN} to {METADATA_VERSION_MAX}; upgrade it"
        )
    return Result(leads, None)


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
_ALL: tuple[_Handler, ...] = (
    _bootstrap, elect_leaderless, _write_no_op, fence_stale_broker, sweep_brokers, elect_all_preferred_leaders,
    elect_returned_leaders, elect_preferred_leaders, look_after_replicas, share_with_coordinators, register,
    heartbeat, report_exit, alter_partitions, assign_replicas, create_topics, delete_topics, create_partitions,
    alter_reassignments, list_reassignments, elect_leaders, unregister_broker, describe_configs, describe_load,
    describe_events, record_event, balance, describe_balance, cancel_balance, drain_broker, describe_drains,
    cancel_drain, alter_configs, allocate_producer_ids, _metadata,
)  # fmt: skip


def _request_type(handler: _Handler) -> type[Any]:
    """The type of request that the handler takes, by its annotation."""
    _, request = signature(handler).parameters.values()
    annotation: type[Any] = request.annotation
    return annotation


_HANDLERS: Mapping[type[Any], _Handler] = {_request_type(each): each for each in _ALL}
