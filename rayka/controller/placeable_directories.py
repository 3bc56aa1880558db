"""Drains of brokers, by the marks in their configurations, and the directories that take new replicas.

A mark is a key of one broker: `broker.drain` for an operator's drain, `scaling.leaving` for a broker that leaves
because fewer are needed, `machine.drain.deadline.ms` for a broker whose machine Ray drains (decision 073). A marked
broker takes no new replicas. The replicas that the broker holds serve until they have moved. A broker whose machine
drains leads only partitions without another replica in sync that may lead.

New replicas go to directories that work and are not cordoned (KIP-1066), of brokers without a mark. Each placement
reads the keys from metadata and specification, so a key counts from the moment at which it is set. Kafka's brokers tell
the controller of cordoned directories in their heartbeats.
"""

from typing import NamedTuple
from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.metadata.image import BrokerImage, MetadataImage, broker_config
from rayka.protocol.configs import DRAIN, DRAIN_DEADLINE, LEAVING
from rayka.protocol.drains import DrainCause

# The deadline while Ray does not say when the machine ends.
NO_DEADLINE = 0


class Drain(NamedTuple):
    """The drain of a broker: all its replicas move away."""

    broker_id: int
    cause: DrainCause
    # The wall clock time at which the machine ends, or `NO_DEADLINE`.
    deadline_ms: int = NO_DEADLINE


def drain_of(image: MetadataImage, broker_id: int) -> Drain | None:
    """The drain of the broker, by its most urgent mark; None without a mark."""
    own = image.broker_configs(broker_id)
    if is_draining(image, broker_id):
        return Drain(broker_id, DrainCause.MACHINE, int(own[DRAIN_DEADLINE]))
    if own.get(LEAVING) == "true":
        return Drain(broker_id, DrainCause.SCALING)
    return Drain(broker_id, DrainCause.OPERATOR) if own.get(DRAIN) == "true" else None


def all_drains(image: MetadataImage) -> list[Drain]:
    """All drains, the most urgent first: machines by their deadlines, then machines without one, then the others."""
    found = [drain for each in sorted(image.brokers) if (drain := drain_of(image, each)) is not None]
    found.sort(key=lambda each: (each.cause is not DrainCause.MACHINE, each.deadline_ms or 1 << 62))
    return found


def draining_brokers(image: MetadataImage) -> list[int]:
    """The active brokers on machines that Ray drains."""
    return [
        each.broker_id
        for each in image.brokers.values()
        if each.is_active and is_draining(image, each.broker_id)
    ]


def is_draining(image: MetadataImage, broker_id: int) -> bool:
    """Whether Ray drains the broker's machine."""
    return int(image.broker_configs(broker_id).get(DRAIN_DEADLINE, "-1")) >= 0


def placeable_directories(
    image: MetadataImage, config: BrokerConfig, broker: BrokerImage
) -> tuple[UUID, ...]:
    """The directories of the broker that take new replicas, in the order of its registration. `config`: the
    configuration that the controller was started with.
    """
    if drain_of(image, broker.broker_id) is not None:
        return ()
    own = broker_config(image, config, broker.broker_id)
    if not own.cordoned_log_dirs:
        return broker.online_directories
    path_of = {each.directory_id: each.path for each in broker.directories}
    return tuple(each for each in broker.online_directories if not own.is_cordoned(path_of[each]))
