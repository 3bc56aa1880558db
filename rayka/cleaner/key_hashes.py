"""Hashes of keys, 16 bytes each, of whole columns at once.

Compaction takes two keys for one when their hashes are equal, as Kafka does with MD5. Here the chance of that is
bounded for any two different keys, also chosen ones, because the hash depends on a secret that no producer knows:

- a key of up to `SHORT_BYTES_MAX` is hashed by four multilinear functions (Carter and Wegman; Lemire and Kaser,
  "Strongly universal string hashing is fast"): the sum of its 32-bit words and of its length, each times a random
  number of 64 bits, modulo 2^64, of which the upper 32 bits count. Each lets two keys collide with a chance of 2^-32,
  the four, which are independent, with 2^-128.
- a longer key is hashed by BLAKE2b with the secret as its key and a digest of 16 bytes.

Kafka: `SkimpyOffsetMap`, which asks for MD5.
"""

import hashlib

import numpy as np
import pyarrow as pa

SHORT_BYTES_MAX = 64
_WORD_BYTES = 4
_LANES = 4
_UPPER = np.uint64(0xFFFF_FFFF_0000_0000)
_HALF = np.uint64(32)
_LENGTHS = SHORT_BYTES_MAX // _WORD_BYTES  # the column of factors for the length, behind those of the words


class KeyHasher:
    """The hash of one cleaning; each has a secret of its own, 16 bytes or more."""

    def __init__(self, secret: bytes) -> None:
        expanded = hashlib.shake_256(secret).digest(_LANES * (_LENGTHS + 1) * 8 + 64)
        self._secret, factors = expanded[:64], np.frombuffer(expanded, np.uint64, offset=64)
        self._factors = factors.reshape(_LANES, _LENGTHS + 1)

    def __repr__(self) -> str:
        return "<KeyHasher>"

    def hashes(self, keys: pa.BinaryArray) -> np.ndarray:
        """For each key two uint64; those of a null say nothing."""
        offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
        data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
        lengths = np.diff(offsets)
        if not len(keys) or int(lengths.max()) <= SHORT_BYTES_MAX:
            return self._short(data, offsets[:-1], lengths)
        hashes = np.empty((len(keys), 2), np.uint64)
        is_short = lengths <= SHORT_BYTES_MAX
        hashes[is_short] = self._short(data, offsets[:-1][is_short], lengths[is_short])
        for number in np.flatnonzero(~is_short):
            key = data[offsets[number] : offsets[number + 1]]
            digest = hashlib.blake2b(key.tobytes(), digest_size=16, key=self._secret).digest()
            hashes[number] = np.frombuffer(digest, np.uint64)
        return hashes

    def _short(self, data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        sums = [self._factors[lane, _LENGTHS] * (lengths + 1).astype(np.uint64) for lane in range(_LANES)]
        for number in range(-(-int(lengths.max(initial=0)) // _WORD_BYTES)):
            word = _words(data, begins, lengths, number)
            for lane in range(_LANES):
                sums[lane] += word * self._factors[lane, number]
        hashes = np.empty((len(lengths), 2), np.uint64)
        hashes[:, 0] = (sums[0] & _UPPER) | (sums[1] >> _HALF)
        hashes[:, 1] = (sums[2] & _UPPER) | (sums[3] >> _HALF)
        return hashes


def _words(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray, number: int) -> np.ndarray:
    """The word of this number of each key, as uint64; a key that ends before or within it is filled up with zeros."""
    count, word = len(lengths), np.zeros(len(lengths), np.uint64)
    first, width, at = int(begins[0]), int(lengths[0]), number * _WORD_BYTES
    end = first + width * count
    if int(begins[-1]) + int(lengths[-1]) == end and (lengths == width).all():
        columns = data[first:end].reshape(count, width)[:, at : at + _WORD_BYTES]
        for byte in range(columns.shape[1]):
            word |= columns[:, byte].astype(np.uint64) << np.uint64(8 * byte)
        return word
    for byte in range(_WORD_BYTES):
        reaches = np.flatnonzero(lengths > at + byte)
        word[reaches] |= data[begins[reaches] + (at + byte)].astype(np.uint64) << np.uint64(8 * byte)
    return word
