"""Opening a log: a directory as the last process left it, or a new one, becomes a `Log`.

Invariant: the log counts once the last slice has ended. Until then, and after an error, the files are as good as before
for the next attempt. Kafka: `LogLoader`, `UnifiedLog.apply` (B31, B32).
"""

import posixpath
from collections.abc import Mapping
from typing import NamedTuple

from rayka.config.topic_config import TopicConfig
from rayka.errors import DamagedLog
from rayka.log.checkpoint_files import (
    LOWERED_RECOVERY_POINT_FILE,
    raised_log_start,
    read_lowered_recovery_point,
    read_raised_log_start,
)
from rayka.log.damage import check_begin
from rayka.log.leader_epoch_cache import LeaderEpochCache
from rayka.log.log import Log
from rayka.log.log_files import LogFiles, Slices
from rayka.log.producer_state import ProducerSnapshots, ProducerStates, has_snapshot
from rayka.log.recovery import POWER_CUTS, Tearing, find_segments, open_segments
from rayka.log.segments import Segments, created_segment, planned_segment
from rayka.ports import Disk


class ShutdownState(NamedTuple):
    """How the last process left a log; the two offsets come from the data directory's checkpoints."""

    recovery_point: int
    log_start_offset: int = 0
    tearing: Tearing = Tearing.SHORT_TAIL


def opening_log(
    disk: Disk, directory: str, config: TopicConfig, left: ShutdownState, *, now_ms: int,
    new_files: Mapping[str, bytes],
) -> Slices[Log]:  # fmt: skip
    """Opens the log in this directory, new if there is none, and recovers it as `left.tearing` asks for (B31, B32).
    Works in slices: a recovery reads all batches from the recovery point on.

    `new_files`, by name, are made with the first segment. The log's `recovery` says what recovery did. Raises
    DamagedLog when recovery would have to cut off bytes that nothing can have torn, or when synced records are missing;
    StorageError when the disk fails.
    """
    is_planned = not disk.exists(directory)
    files = LogFiles(disk, directory, awaited=new_files if is_planned else None)
    snapshots = ProducerSnapshots(files, ProducerStates(posixpath.basename(directory), now_ms))
    if is_planned:
        start_offset = left.log_start_offset
        segments = Segments(files, [planned_segment(files, config, start_offset, now_ms)])
        return Log(
            files, config, LeaderEpochCache(files), segments, snapshots,
            log_start_offset=start_offset, flushed_offset=start_offset,
        )  # fmt: skip
    return (yield from _existing(files, config, left, snapshots, now_ms=now_ms, new_files=new_files))


def _existing(
    files: LogFiles, config: TopicConfig, left: ShutdownState, snapshots: ProducerSnapshots, *, now_ms: int,
    new_files: Mapping[str, bytes],
) -> Slices[Log]:  # fmt: skip
    disk, directory, epochs = files.disk, files.directory, LeaderEpochCache(files)
    recovery_point = read_lowered_recovery_point(disk, directory, left.recovery_point)
    first_offset = read_raised_log_start(disk, directory)
    is_clean = left.tearing is Tearing.NOTHING
    scan_from = None if is_clean else recovery_point
    found = find_segments(files, config, now_ms)
    if first_offset is not None:
        check_begin(found, max(left.log_start_offset, first_offset))
    # Segments below the log start were removed before, and a power cut has brought their names back. A segment stays if
    # the next one has no snapshot at its begin: then only the segment knows its producers.
    below = [each for each in found[1:] if each.base_offset <= left.log_start_offset]
    first = next((each for each in reversed(below) if has_snapshot(files, each.base_offset)), None)
    while first is not None and found[0] is not first:
        found.pop(0).delete()
    # A recovery point at the log start says of no byte that it was synced: the records below it were given up.
    synced_offset = recovery_point if recovery_point > left.log_start_offset else 0
    recovery = yield from open_segments(
        found,
        files,
        epochs,
        scan_from=scan_from if epochs.load() else 0,
        synced_offset=synced_offset,
        tearing=left.tearing,
    )
    if not found:
        is_clean = False
        first_offset = max(left.log_start_offset, first_offset or 0)
        found.append(created_segment(files, config, first_offset, now_ms))
    segments = Segments(files, found)
    end_offset = segments.active.next_offset
    if end_offset < recovery_point and left.log_start_offset < recovery_point:
        raise DamagedLog(
            f"{directory} ends at offset {end_offset}, but was synced up to {recovery_point}: a file in"
            " it is missing or was shortened. Restore it from a copy; or, to go on without its records, make an"
            f" empty file {files.path(LOWERED_RECOVERY_POINT_FILE)}; then restart the node"
        )
    files.write(
        new_files
        if first_offset is not None
        else {**new_files, **raised_log_start(segments.first.base_offset)}
    )
    start_offset = max(left.log_start_offset, segments.first.base_offset)
    epochs.truncate_from_end(end_offset)
    epochs.complete()
    flushed_offset, trusted_offset = end_offset, None
    if not is_clean:
        flushed_offset = max(start_offset, min(recovery_point, end_offset))
        trusted_offset = end_offset
        if left.tearing in POWER_CUTS:
            trusted_offset = max(recovery_point, segments.first.base_offset)
        files.unsynced.name_changed(directory)
        epochs.touch()
    elif recovery.scanned_bytes:
        # The log was shut down cleanly, and is damaged all the same.
        trusted_offset = end_offset
    yield from snapshots.open(segments, trusted_offset=trusted_offset, damaged=recovery.damaged)
    if not is_clean:
        snapshots.on_unclean(recovery_point)
    log = Log(
        files, config, epochs, segments, snapshots,
        log_start_offset=start_offset, flushed_offset=flushed_offset, recovery=recovery,
    )  # fmt: skip
    if start_offset > end_offset:
        log.truncate_fully_and_start_at(start_offset)
    return log
