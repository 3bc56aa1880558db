"""Segments that are missing or were shortened by hand: told from gaps that are no loss.

A follower copies gaps that compaction made on the leader (B18). They are always *within* a segment, because a
segment is rolled at the log end offset and not, as in Kafka, at the first offset appended (F10): so each segment
begins where the one before it ends, and anything else is a hole. The one exception is a gap too wide for a
segment's indexes; nothing else makes a step of more than `GAP_MAX` offsets.

Where a sealed segment ends is found from the last entry of its index: a few small reads for each, at every start.
Kafka has no such check: it reads on behind the hole.
"""

import posixpath
from collections.abc import Sequence
from itertools import pairwise

from rayka.errors import DamagedLog
from rayka.log.markers import LOWERED_RECOVERY_POINT_FILE, RAISED_LOG_START_FILE
from rayka.log.segment import GAP_MAX, Segment


def check_begin(segments: Sequence[Segment], log_start_offset: int) -> None:
    """Raises DamagedLog when records from the log start on are missing before the first segment."""
    if segments and segments[0].base_offset > log_start_offset:
        path = segments[0].path
        marker = posixpath.join(posixpath.dirname(path), RAISED_LOG_START_FILE)
        raise DamagedLog(
            f"{posixpath.dirname(path)}: offsets {log_start_offset} to {segments[0].base_offset - 1} are missing: the"
            f" first segment is {posixpath.basename(path)}, one before it was removed. Restore it from a copy; or, to"
            f" go on without these records, make an empty file {marker}; then restart the node"
        )


def check_sealed(segments: Sequence[Segment]) -> None:
    """Raises DamagedLog when one of these ends before the next one begins, the last one not looked at."""
    for segment, following in pairwise(segments):
        end_offset = segment.find_end()
        if end_offset is not None and is_hole(end_offset, following):
            raise hole(segment, end_offset, following)


def is_hole(end_offset: int, following: Segment) -> bool:
    """Whether records are missing between the end of one segment and the next one."""
    return 0 < following.base_offset - end_offset <= GAP_MAX


def hole(segment: Segment, end_offset: int, following: Segment) -> DamagedLog:
    """What to raise when they are: which offsets, and what to do."""
    directory, name = posixpath.split(following.path)
    return DamagedLog(
        f"{directory}: offsets {end_offset} to {following.base_offset - 1} are missing: {segment.path} ends at offset"
        f" {end_offset}, and the next segment is {name}. A file was removed or shortened. Restore it from a copy; or,"
        f" to go on with what is before the hole, remove the segments from {name} on, and make an empty file"
        f" {posixpath.join(directory, LOWERED_RECOVERY_POINT_FILE)}; then restart the node"
    )
