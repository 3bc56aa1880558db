"""Which node leads a partition: what a broker says beside its refusal of a client that asked the wrong node.

The client goes on there without a question for metadata. Kafka: `CurrentLeader` in answers to Produce and Fetch
(KIP-951).
"""

from typing import NamedTuple

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, NO_NODE
from rayka.protocol.fetch import FetchPartitionResult
from rayka.protocol.produce import ProducePartitionResult

NAMING_CODES = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class CurrentLeader(NamedTuple):
    """The leader and its epoch, as far as the broker knows; -1 when it knows of none."""

    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH


# What an answer says of one partition. The leader counts beside an error only, and if its epoch is news.
NamesLeader = FetchPartitionResult | ProducePartitionResult
