"""The hash of each key of a producer, remembered, because keys come again and murmur2 costs as much as the rest of a
`send`. Kafka: BuiltInPartitioner.partitionForKey.
"""

from rayka.protocol.murmur2 import positive_murmur2

KEYS_MAX = 1 << 14  # with keys of the longest kind 8 MB
_KEY_BYTES_MAX = 256


class RememberedHashes(dict[bytes, int]):
    """`hashes[key]` is the hash of any key, remembered or not; modulo the number of partitions it is the key's one.

    Threads may share it without a lock: of a key, all of them remember the same. Each may then add one key more than
    the bound.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<RememberedHashes of {len(self)} keys>"

    def __missing__(self, key: bytes) -> int:
        hashed = positive_murmur2(key)
        if len(key) <= _KEY_BYTES_MAX:
            if len(self) >= KEYS_MAX:
                self.clear()
            self[key] = hashed
        return hashed
