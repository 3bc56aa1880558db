"""The partition of each key of a topic, remembered, because keys come again and murmur2 costs as much as the rest of a
`send`. Kafka: BuiltInPartitioner.partitionForKey.
"""

from rayka.protocol.murmur2 import partition_for_key

KEYS_MAX = 1 << 14  # with keys of the longest kind 7 MB
_KEY_BYTES_MAX = 256


class KeyPartitions(dict[bytes, int]):
    """`partitions[key]` is the partition of any key, remembered or not.

    Invariant: of one number of partitions for good; a topic that has grown gets another object. So threads may share
    it without a lock: of a key, all of them remember the same.
    """

    __slots__ = ("partition_count",)

    def __init__(self, partition_count: int) -> None:
        super().__init__()
        self.partition_count = partition_count

    def __repr__(self) -> str:
        return f"<KeyPartitions of {self.partition_count}, remembers {len(self)} keys>"

    def __missing__(self, key: bytes) -> int:
        partition = partition_for_key(key, self.partition_count)
        if len(key) <= _KEY_BYTES_MAX:
            if len(self) >= KEYS_MAX:
                self.clear()
            self[key] = partition
        return partition
