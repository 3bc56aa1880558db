"""Which directories of a broker take new replicas: those that work and are not cordoned (KIP-1066), none of a broker
whose machine drains, or that goes because fewer are needed.

`cordoned.log.dirs` is read where replicas are placed, from the metadata and the specification: it counts from the
moment at which it is set. What is in a cordoned directory already stays and serves. Kafka's brokers tell the controller
in their heartbeats.
"""

from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.metadata.image import BrokerImage, MetadataImage, broker_config
from rayka.protocol.configs import DRAIN_DEADLINE, LEAVING

# Which brokers are on a machine that is about to go (decision 073).
#
# The supervisor says so of one broker in its configuration. Such a broker is no place for a new replica, and leads only
# what no other replica in sync can. What it holds stays and serves.


def draining_brokers(image: MetadataImage) -> list[int]:
    """Those that still run."""
    return [
        each.broker_id
        for each in image.brokers.values()
        if each.is_active and is_draining(image, each.broker_id)
    ]


def is_draining(image: MetadataImage, broker_id: int) -> bool:
    return int(image.broker_configs(broker_id).get(DRAIN_DEADLINE, "-1")) >= 0


def placeable_directories(
    image: MetadataImage, config: BrokerConfig, broker: BrokerImage
) -> tuple[UUID, ...]:
    """In the order of the broker's registration. `config` is what the controller was started with."""
    is_leaving = image.broker_configs(broker.broker_id).get(LEAVING) == "true"
    if is_leaving or is_draining(image, broker.broker_id):
        return ()
    own = broker_config(image, config, broker.broker_id)
    if not own.cordoned_log_dirs:
        return broker.online_directories
    path_of = {each.directory_id: each.path for each in broker.directories}
    return tuple(each for each in broker.online_directories if not own.is_cordoned(path_of[each]))
