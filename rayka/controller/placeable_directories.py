"""Which directories of a broker take new replicas: those that work and are not cordoned (KIP-1066), none of a broker
whose machine drains, or that goes because fewer are needed.

`cordoned.log.dirs` is read where replicas are placed, from the metadata and the specification: it counts from the
moment at which it is set. What is in a cordoned directory already stays and serves. Kafka's brokers tell the controller
in their heartbeats.
"""

from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.controller.draining_brokers import is_draining
from rayka.metadata.image import BrokerImage, MetadataImage, broker_config
from rayka.protocol.configs import LEAVING


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
