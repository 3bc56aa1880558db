"""Which replica a consumer reads from, when the leader is not in its rack (G15).

Kafka: `RackAwareReplicaSelector` (KIP-392).
"""

from collections.abc import Callable, Iterable

from rayka.ids import NO_NODE
from rayka.metadata.image import BrokerImage
from rayka.partition.follower_states import FollowerState


def choose_read_replica(
    in_sync: Iterable[FollowerState],
    fetch_offset: int,
    rack_id: str,
    brokers: Callable[[int], BrokerImage | None],
) -> int:
    """The most caught up of the followers in the reader's rack that have the offset; -1 when there is none."""
    able = [
        each
        for each in in_sync
        if each.log_start_offset <= fetch_offset <= each.log_end_offset
        and is_alive_in(brokers(each.replica_id), rack_id)
    ]
    if not able:
        return NO_NODE
    best = max(able, key=lambda each: (each.log_end_offset, each.last_caught_up_ms, each.replica_id))
    return best.replica_id


def is_alive_in(broker: BrokerImage | None, rack_id: str) -> bool:
    """Whether the broker is there to read from, in that rack."""
    return broker is not None and not broker.is_fenced and broker.registration.rack == rack_id
