"""Puts the keys of batches into a map of offsets, as far as there is room (F21). Kafka: `Cleaner.buildOffsetMap`."""

from collections.abc import Sequence

import numpy as np

from rayka.cleaner.kept_records import hashes_of
from rayka.cleaner.key_hashes import KeyHasher
from rayka.cleaner.offset_map import OffsetMap
from rayka.protocol.batch_columns import is_valid
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_header import RecordBatch


class MapBuilder:
    """The map of one cleaning. `end_offset`: how far it reaches."""

    def __init__(self, hasher: KeyHasher, offsets: OffsetMap, first_offset: int) -> None:
        self._hasher = hasher
        self._first_offset = first_offset
        self.offsets = offsets
        self.end_offset = first_offset

    def __repr__(self) -> str:
        return f"<MapBuilder {self.offsets!r} end={self.end_offset}>"

    def put(self, batches: Sequence[RecordBatch]) -> bool:
        """Whether there is room for all of these; the map ends before the first record that found none."""
        decoded = [decode(each, check_crc=False) for each in batches if not each.is_control]
        if decoded:
            keys = [each.keys for each in decoded]
            hashes = hashes_of(self._hasher, keys)
            offsets = np.concatenate([each.offsets for each in decoded])
            has_key = np.concatenate([is_valid(each) for each in keys])
            wanted = has_key & (offsets >= self._first_offset)
            hashes, offsets = hashes[wanted], offsets[wanted]
            put = self.offsets.put(hashes, offsets)
            if put < len(offsets):
                self.end_offset = max(self.end_offset, int(offsets[put]))
                return False
        self.end_offset = max(self.end_offset, batches[-1].next_offset)
        return True
