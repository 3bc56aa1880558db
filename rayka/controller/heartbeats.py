"""What the controller makes of a broker by its heartbeats and its silence (H4-H6).

Kafka: `BrokerHeartbeatManager.calculateNextBrokerState`, `ReplicationControlManager.processBrokerHeartbeat`.
"""

from enum import Enum

import msgspec

from rayka.controller.elections import changes_after, leads_any
from rayka.controller.sessions import BrokerSessions
from rayka.errors import BrokerIdNotRegistered, StaleBrokerEpoch
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.metadata.records import BrokerRegistrationChangeRecord, MetadataRecord
from rayka.protocol.cluster import HeartbeatRequest, HeartbeatResponse
from rayka.shard.shard import Result


class BrokerState(Enum):
    """A broker as the controller sees it; Kafka's `BrokerControlState`."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled-shutdown"
    SHUTDOWN_NOW = "shutdown-now"


_FENCED_STATES = (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW)


def heartbeat(
    image: MetadataImage, request: HeartbeatRequest, sessions: BrokerSessions
) -> Result[MetadataRecord, HeartbeatResponse]:
    """The broker's next state, and the records that lead there; none while it stays what it is (H4)."""
    broker = registered_broker(image, request.broker_id, request.broker_epoch)
    state = _next_state(image, broker, request, sessions)
    becomes = msgspec.structs.replace(
        broker,
        is_fenced=state in _FENCED_STATES,
        is_in_controlled_shutdown=broker.is_in_controlled_shutdown
        or state is BrokerState.CONTROLLED_SHUTDOWN,
        offline_directories=request.offline_directory_ids,
    )
    response = HeartbeatResponse(
        is_caught_up=_is_caught_up(broker, request),
        is_fenced=becomes.is_fenced,
        should_shut_down=state is BrokerState.SHUTDOWN_NOW,
    )
    return Result(_records(image, broker, becomes), response, is_atomic=False)


def fence(image: MetadataImage, broker: BrokerImage) -> list[MetadataRecord]:
    """The records that fence a broker: its partitions first, then itself (B44)."""
    return _records(image, broker, msgspec.structs.replace(broker, is_fenced=True))


def registered_broker(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker that a request is from. Raises BrokerIdNotRegistered, StaleBrokerEpoch (H3)."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"broker {broker_id} is not registered; it must register first")
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpoch(
            f"broker {broker_id} has epoch {broker.broker_epoch}, not {broker_epoch}: "
            "another process has registered under this id"
        )
    return broker


def _next_state(
    image: MetadataImage, broker: BrokerImage, request: HeartbeatRequest, sessions: BrokerSessions
) -> BrokerState:
    """H5."""
    if broker.is_fenced:
        if request.want_shut_down:
            return BrokerState.SHUTDOWN_NOW
        can_serve = not request.want_fence and _is_caught_up(broker, request)
        return BrokerState.UNFENCED if can_serve else BrokerState.FENCED
    if broker.is_in_controlled_shutdown:
        is_done = not leads_any(image, broker.broker_id) and sessions.have_seen_shutdown(
            broker, image.brokers
        )
        return BrokerState.SHUTDOWN_NOW if is_done else BrokerState.CONTROLLED_SHUTDOWN
    if request.want_fence:
        return BrokerState.SHUTDOWN_NOW if request.want_shut_down else BrokerState.FENCED
    if request.want_shut_down:
        leads = leads_any(image, broker.broker_id)
        return BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW
    return BrokerState.UNFENCED


def _is_caught_up(broker: BrokerImage, request: HeartbeatRequest) -> bool:
    """Whether the broker has applied its own registration."""
    return request.current_metadata_offset >= broker.broker_epoch


def _records(image: MetadataImage, broker: BrokerImage, becomes: BrokerImage) -> list[MetadataRecord]:
    if becomes == broker:
        return []
    names = ("is_fenced", "is_in_controlled_shutdown", "offline_directories")
    changed = {
        name: getattr(becomes, name) for name in names if getattr(becomes, name) != getattr(broker, name)
    }
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, **changed
    )
    return [*changes_after(image, becomes), change]
