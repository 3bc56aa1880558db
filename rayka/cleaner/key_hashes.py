"""Hashes of keys, 16 bytes each, for whole columns at once.

Compaction takes two keys for one when their hashes are equal, as Kafka does with MD5. Here the chance of that is
bounded for any two different keys, also for chosen ones, because the hash depends on a secret that no producer knows:

- A key of up to `EXACT_BYTES_MAX` is not hashed but kept exactly: its bytes as an integer, mixed by a secret function
  that can be undone, and its length. No two of them are equal.
- A key of up to `SHORT_BYTES_MAX` is hashed by four multilinear functions (Carter and Wegman; Lemire and Kaser,
  "Strongly universal string hashing is fast"): the sum of its 32-bit words and of its length, each times a random
  number of 64 bits, modulo 2^64, of which the upper 32 bits count. Each function lets two keys collide with a chance of
  2^-32; all four, which are independent, with 2^-128.
- A longer key is hashed by BLAKE2b with the secret as its key and a digest of 16 bytes.

The lowest bit of the second half is always set, so that no key has the hash of an empty slot; this leaves 127 bits.

Kafka: `SkimpyOffsetMap`, which asks for MD5.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

EXACT_BYTES_MAX = 8
SHORT_BYTES_MAX = 64
_WORD_BYTES = 4
_LANES = 4
_UPPER = np.uint64(0xFFFF_FFFF_0000_0000)
_LOWER = np.uint64(0x0000_0000_FFFF_FFFF)
_LOWEST = np.uint64(1)
_HALF = np.uint64(32)
# Added to a hash, so that its second half is not 0.
_OF_A_KEY = np.array([0, 1], np.uint64)
# Read at once of keys of unequal length.
_READ_BYTES = 8
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_READ_BYTES + 1)], np.uint64)
# The column of factors for the length, behind the columns for the words.
_LENGTHS = SHORT_BYTES_MAX // _WORD_BYTES


class KeyHasher:
    """The hash of one cleaning. Each has another secret, 16 bytes or more."""

    def __init__(self, secret: bytes) -> None:
        expanded = hashlib.shake_256(secret).digest(64 + (_LANES * (_LENGTHS + 1) + 2) * 8)
        self._secret, factors = expanded[:64], np.frombuffer(expanded, np.uint64, offset=64)
        self._factors = factors[:-2].reshape(_LANES, _LENGTHS + 1)
        # Odd, so that a multiplication by them can be undone.
        self._first_mixer, self._second_mixer = factors[-2:] | _LOWEST

    def hashes(self, keys: pa.BinaryArray) -> np.ndarray:
        """Two uint64 for each key, of which the second is not 0. Those of a null have no meaning."""
        offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
        data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
        lengths = np.diff(offsets)
        longest = int(lengths.max(initial=0))
        if longest <= EXACT_BYTES_MAX:
            return self._exact(data, offsets[:-1], lengths)
        if longest <= SHORT_BYTES_MAX:
            return self._short(data, offsets[:-1], lengths)
        hashes = np.empty((len(keys), 2), np.uint64)
        is_short = lengths <= SHORT_BYTES_MAX
        hashes[is_short] = self._short(data, offsets[:-1][is_short], lengths[is_short])
        for number in np.flatnonzero(~is_short):
            key = data[offsets[number] : offsets[number + 1]]
            digest = hashlib.blake2b(key.tobytes(), digest_size=16, key=self._secret).digest()
            hashes[number] = np.frombuffer(digest, np.uint64) | _OF_A_KEY
        return hashes

    def _exact(self, data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        mixed = _integers(data, begins, lengths) * self._first_mixer
        mixed ^= mixed >> _HALF
        mixed *= self._second_mixer
        hashes = np.empty((len(lengths), 2), np.uint64)
        np.bitwise_xor(mixed, mixed >> _HALF, out=hashes[:, 0])
        hashes[:, 1] = 2 * lengths + 1
        return hashes

    def _short(self, data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Uses `_exact` for the keys that it suits: a key has one hash, whatever stands beside it."""
        hashes = self._multilinear(data, begins, lengths)
        is_exact = lengths <= EXACT_BYTES_MAX
        if is_exact.any():
            hashes[is_exact] = self._exact(data, begins[is_exact], lengths[is_exact])
        return hashes

    def _multilinear(self, data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        sums = np.multiply.outer(self._factors[:, _LENGTHS], (lengths + 1).astype(np.uint64))
        for number, word in enumerate(_words(data, begins, lengths)):
            sums += np.multiply.outer(self._factors[:, number], word)
        hashes = np.empty((len(lengths), 2), np.uint64)
        np.bitwise_or(sums[0] & _UPPER, sums[1] >> _HALF, out=hashes[:, 0])
        np.bitwise_or(sums[2] & _UPPER, sums[3] >> _HALF | _LOWEST, out=hashes[:, 1])
        return hashes


def _integers(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Keys of up to eight bytes as uint64, filled up with zeros."""
    if not len(lengths):
        return np.zeros(0, np.uint64)
    first, last = int(begins[0]), int(begins[-1]) + int(lengths[-1])
    if last - first == EXACT_BYTES_MAX * len(lengths) and (lengths == EXACT_BYTES_MAX).all():
        return data[first:last].view(np.dtype("<u8"))
    padded = np.concatenate([data[first:last], np.zeros(_READ_BYTES, np.uint8)])
    anywhere = np.ndarray(len(padded) - _READ_BYTES + 1, np.dtype("<u8"), padded, strides=(1,))
    integers: np.ndarray = anywhere[begins - first] & _FIRST_BYTES[lengths]
    return integers


def _words(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """The words of the keys as uint64, column by column. A key that ends earlier is filled up with zeros."""
    count, width = len(lengths), int(lengths.max(initial=0))
    if not width:
        return
    first, last = int(begins[0]), int(begins[-1]) + int(lengths[-1])
    if last - first == width * count and (lengths == width).all():
        yield from _words_of_equals(data[first:last].reshape(count, width))
        return
    padded = np.concatenate([data[first:last], np.zeros(_READ_BYTES, np.uint8)])
    anywhere = np.ndarray(len(padded) - _READ_BYTES + 1, np.dtype("<u8"), padded, strides=(1,))
    for at in range(0, width, _READ_BYTES):
        reaches = np.flatnonzero(lengths > at)
        left = np.minimum(lengths[reaches] - at, _READ_BYTES)
        read = np.zeros(count, np.uint64)
        read[reaches] = anywhere[begins[reaches] + (at - first)] & _FIRST_BYTES[left]
        yield read & _LOWER
        if at + _WORD_BYTES < width:
            yield read >> _HALF


def _words_of_equals(keys: np.ndarray) -> Iterator[np.ndarray]:
    """The words of keys of equal length, a row each."""
    count, width = keys.shape
    word_count = -(-width // _WORD_BYTES)
    if width % _WORD_BYTES:
        whole = np.zeros((count, word_count * _WORD_BYTES), np.uint8)
        whole[:, :width] = keys
        keys = whole
    words = keys.view(np.dtype("<u4"))
    for number in range(word_count):
        yield words[:, number].astype(np.uint64)
