"""Which brokers are on a machine that is about to go (decision 073).

The supervisor says so of one broker in its configuration. Such a broker is no place for a new replica, and leads only
what no other replica in sync can. What it holds stays and serves.
"""

from rayka.metadata.image import MetadataImage
from rayka.protocol.configs import DRAIN_DEADLINE


def draining_brokers(image: MetadataImage) -> list[int]:
    """Those that still run."""
    return [
        each.broker_id
        for each in image.brokers.values()
        if each.is_active and is_draining(image, each.broker_id)
    ]


def is_draining(image: MetadataImage, broker_id: int) -> bool:
    return int(image.broker_configs(broker_id).get(DRAIN_DEADLINE, "-1")) >= 0
