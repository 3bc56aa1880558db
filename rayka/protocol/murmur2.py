"""Kafka's murmur2 hash of keys, for one key and for a column of keys, and the partition of a key.

A key goes to the same partition as with Kafka's Java client. Kafka: `Utils.murmur2`,
`BuiltInPartitioner.partitionForKey`.
"""

from struct import Struct, unpack_from

import numpy as np
import pyarrow as pa

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_SHORT_KEY_BYTES = 256
_WORDS = [Struct(f"<{count}I").unpack_from for count in range(_SHORT_KEY_BYTES // 4 + 1)]
# Longer keys of a column are hashed one by one: the rounds of the longest key cost the whole column.
_COLUMN_KEY_BYTES_MAX = 256


def murmur2(key: bytes) -> int:
    """The hash as a signed 32-bit integer, as in Java."""
    state = _murmur2(key)
    return state - (1 << 32) if state > _POSITIVE else state


def positive_murmur2(key: bytes) -> int:
    """The hash without its sign. Modulo the number of partitions, the result is the key's partition."""
    return _murmur2(key) & _POSITIVE


def _murmur2(key: bytes) -> int:
    """The hash as an unsigned integer. A mask commutes with the exclusive or, so one mask cuts both products of a
    round.
    """
    length = len(key)
    state = _SEED ^ length
    words = _WORDS[length >> 2](key) if length <= _SHORT_KEY_BYTES else unpack_from(f"<{length >> 2}I", key)
    for word in words:
        mixed = word * _FACTOR & _MASK
        state = (state * _FACTOR ^ (mixed ^ mixed >> 24) * _FACTOR) & _MASK
    if length & 3:
        tail = int.from_bytes(key[length & ~3 :], "little")
        state = (state ^ tail) * _FACTOR & _MASK
    state = (state ^ state >> 13) * _FACTOR & _MASK
    return state ^ state >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key in a topic of `partition_count` partitions."""
    return positive_murmur2(key) % partition_count


def partitions_for_keys(keys: pa.BinaryArray, partition_count: int) -> np.ndarray:
    """The partition of every key as int32. The number of a null key is meaningless: such a key has no partition."""
    return (murmur2_column(keys) & _POSITIVE) % np.int32(partition_count)


def murmur2_column(keys: pa.BinaryArray) -> np.ndarray:
    """The hashes of an array of binary as int32, computed one word of every key at a time."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(keys) + 1, keys.offset * 4)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    long_count = int(np.count_nonzero(lengths > _COLUMN_KEY_BYTES_MAX))
    hashes = np.empty(len(keys), np.int32)
    for index in order[:long_count]:
        hashes[index] = murmur2(data[offsets[index] : offsets[index + 1]].tobytes())
    short = order[long_count:]
    hashes[short] = _hashes_of_falling_lengths(data, offsets[short], lengths[short]).view(np.int32)
    return hashes


def _hashes_of_falling_lengths(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The hashes of the byte strings at `begins`. Precondition: `lengths` never rise, so that the keys that have a word
    in a round are the first ones.
    """
    factor = np.uint32(_FACTOR)
    # A word at every byte.
    words = np.ndarray(max(len(data) - 3, 0), "<u4", data, strides=(1,))
    states: np.ndarray = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    # Rising, for a bisection.
    negated_word_counts = -(lengths >> 2)
    for round_number in range(-int(negated_word_counts[0]) if len(lengths) else 0):
        active = np.searchsorted(negated_word_counts, -round_number)
        mixed = words[begins[:active] + 4 * round_number] * factor
        mixed = (mixed ^ mixed >> 24) * factor
        states[:active] = states[:active] * factor ^ mixed
    tailed = np.flatnonzero(lengths & 3)
    states[tailed] = (states[tailed] ^ _tails(data, begins[tailed], lengths[tailed])) * factor
    states = (states ^ states >> 13) * factor
    states ^= states >> 15
    return states


def _tails(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The one to three bytes behind the last whole word, as a little-endian number."""
    tails = np.zeros(len(lengths), np.uint32)
    for place in range(3):
        has = np.flatnonzero(lengths & 3 > place)
        positions = begins[has] + (lengths[has] & ~3) + place
        tails[has] |= data[positions].astype(np.uint32) << np.uint32(8 * place)
    return tails
