"""The checkpoints of one data directory: recovery points, log start offsets, high watermarks of its partitions, and how
far these are compacted (B4, F13, F20).

Invariants: a log that is gone is forgotten before another of its name begins; nothing is written while nothing has
changed since this process wrote it. Kafka: `OffsetCheckpointFile`, `LogManager.checkpointLogRecoveryOffsets`.
"""

import posixpath
from collections.abc import Mapping

from rayka.ids import TopicPartition
from rayka.log.checkpoint_files import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    encode_offsets,
    read_offsets,
)
from rayka.log.durable import replace_durably
from rayka.log.log import Log
from rayka.ports import Disk

# A recovery point may rest on a log start that made what is below it needless: that one is written first.
_FILES = (LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, CLEANER_OFFSET_FILE)


class OffsetCheckpoints:
    """What the four files say, or will say next, by partition."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._paths = [posixpath.join(directory, name) for name in _FILES]
        self._all = [read_offsets(disk, path) for path in self._paths]
        self.log_start_offsets, self.recovery_points, self.high_watermarks, self.cleaned_offsets = self._all
        self.saved_recovery_points = dict(self.recovery_points)
        self._saved: list[dict[TopicPartition, int]] | None = None  # by this process

    def __repr__(self) -> str:
        return f"<OffsetCheckpoints partitions={len(self.recovery_points)}>"

    def note(self, topic_partition: TopicPartition, log: Log) -> None:
        """What an open log knows to be durable, and where it starts."""
        self.recovery_points[topic_partition] = log.flushed_offset
        self.log_start_offsets[topic_partition] = log.log_start_offset
        if log.cleaned_offset:
            self.cleaned_offsets[topic_partition] = log.cleaned_offset
        else:
            self.cleaned_offsets.pop(topic_partition, None)

    def forget(self, topic_partition: TopicPartition) -> bool:
        """The log is gone. Whether anything was known of its records."""
        known = [offsets.pop(topic_partition, 0) for offsets in self._all]
        return any(offset > 0 for offset in known)

    async def save(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Writes the files, durably, with what the open logs know now. Raises StorageError; they are whole then."""
        for topic_partition, log in logs.items():
            self.note(topic_partition, log)
        if self._all == self._saved:
            return
        self._saved, written = None, [dict(offsets) for offsets in self._all]
        contents = zip(self._paths, map(encode_offsets, written), strict=True)
        await replace_durably(self._disk, dict(contents))
        self._saved, self.saved_recovery_points = written, written[1]
        for topic_partition, log in logs.items():
            log.on_recovery_point_saved(self.saved_recovery_points.get(topic_partition, 0))
