"""One kind of state machine that brokers host on the partitions of an internal topic, each partition a shard.

Kafka: `CoordinatorShardBuilderSupplier`, `CoordinatorRecordSerde`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rayka.protocol.topics import NewTopic
from rayka.shard.shard import Shard
from rayka.shard.shard_records import RecordCodec


@dataclass(frozen=True, slots=True)
class ShardType:
    """`topic` is what is created when it is needed; `make_shard` makes the empty shard of a partition's number."""

    topic: NewTopic
    codec: RecordCodec[Any]
    make_shard: Callable[[int], Shard[Any]]
