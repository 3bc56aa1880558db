"""Puts the keys of batches into a map of offsets, as far as there is room (F21). Kafka: `Cleaner.buildOffsetMap`."""

from collections.abc import Sequence

import numpy as np

from rayka.cleaner.kept_records import hashes_of, readable
from rayka.cleaner.key_hashes import KeyHasher
from rayka.cleaner.offset_map import OffsetMap
from rayka.protocol.batch_columns import is_valid
from rayka.protocol.batch_decode import DecodedBatch
from rayka.protocol.batch_format import RecordBatch


class MapBuilder:
    """The map of one cleaning. `end_offset`: how far it reaches; `unreadable`: the base offsets of batches that are not
    in it, because nothing can be read of them.
    """

    def __init__(self, hasher: KeyHasher, offsets: OffsetMap, first_offset: int) -> None:
        self._hasher = hasher
        self._first_offset = first_offset
        self.offsets = offsets
        self.end_offset = first_offset
        self.unreadable: set[int] = set()

    def __repr__(self) -> str:
        return f"<MapBuilder {self.offsets!r} end={self.end_offset}>"

    def put(self, batches: Sequence[RecordBatch]) -> bool:
        """Whether there is room for all of these; the map ends before the first record that found none."""
        decoded = []
        for batch in batches:
            records = None if batch.is_control else readable(batch)
            if records is not None:
                decoded.append(records)
            elif not batch.is_control:
                self.unreadable.add(batch.base_offset)
        if decoded:
            hashes, offsets = self._wanted(decoded)
            put = self.offsets.put(hashes, offsets)
            if put < len(offsets):
                self.end_offset = max(self.end_offset, int(offsets[put]))
                return False
        self.end_offset = max(self.end_offset, batches[-1].next_offset)
        return True

    def _wanted(self, decoded: Sequence[DecodedBatch]) -> tuple[np.ndarray, np.ndarray]:
        """Hash and offset of each record that belongs in the map: it has a key, and is not clean yet."""
        keys = [each.keys for each in decoded]
        hashes = hashes_of(self._hasher, keys)
        columns = [each.offsets for each in decoded]
        offsets = columns[0] if len(columns) == 1 else np.concatenate(columns)
        has_nulls = any(each.null_count for each in keys)
        if len(offsets) and offsets[0] >= self._first_offset and not has_nulls:
            return hashes, offsets
        is_wanted = offsets >= self._first_offset
        if has_nulls:
            is_wanted &= np.concatenate([is_valid(each) for each in keys])
        return hashes[is_wanted], offsets[is_wanted]
