"""What `rayka topic describe` shows of the logs of a topic: how large and how old they are, and what was done last."""

from typing import TYPE_CHECKING

from rayka.cli.moments import local_time
from rayka.cli.output import Count, Style, print_table, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayka.client.admin.admin_partition_results import (
        LastRetentionInfo,
        LogCleaningInfo,
        ReplicaLogInfo,
    )
    from rayka.client.admin.admin_results import PartitionDescription

_COLUMNS = (
    "partition",
    "offsets",
    "records",
    "size",
    "segments",
    "oldest record",
    "dirty",
    "last compaction",
    "last retention",
)
_UNKNOWN = "unknown"


def print_logs(partitions: "Sequence[PartitionDescription]") -> None:
    """A table of the leaders' logs. What a broker that did not answer would know is unknown."""
    rows = [(each.partition, *_cells(each.leader_log)) for each in partitions]
    styles = [Style.NOTE if each.leader_log is None else Style.PLAIN for each in partitions]
    print_table("Logs of the leaders", _COLUMNS, rows, styles)


def compaction_problems(topic_name: str, partitions: "Sequence[PartitionDescription]") -> list[str]:
    """Why replicas cannot be compacted, one line each."""
    return [
        f"{topic_name}-{each.partition} grows on broker {node_id}: {log.cleaning.problem}"
        for each in partitions
        for node_id, log in zip(each.replicas, each.logs, strict=False)
        if log is not None and log.cleaning is not None and log.cleaning.problem
    ]


def _cells(log: "ReplicaLogInfo | None") -> tuple[object, ...]:
    if log is None:
        return (_UNKNOWN,) * (len(_COLUMNS) - 1)
    return (
        f"{log.log_start_offset}-{log.high_watermark}",
        Count(log.high_watermark - log.log_start_offset),
        size(log.size_bytes),
        Count(log.segment_count),
        "none" if log.oldest_timestamp_ms < 0 else local_time(log.oldest_timestamp_ms),
        *_cleaning_cells(log.cleaning),
        _retention_cell(log.retention),
    )


def _cleaning_cells(cleaning: "LogCleaningInfo | None") -> tuple[str, str]:
    if cleaning is None:
        return "-", "-"
    last = cleaning.last
    if last is None:
        return f"{cleaning.dirty_ratio:.0%}", "none"
    done = f"{local_time(last.timestamp_ms)}, {size(last.input_bytes)} to {size(last.output_bytes)}"
    return f"{cleaning.dirty_ratio:.0%}", done


def _retention_cell(last: "LastRetentionInfo | None") -> str:
    return (
        "none" if last is None else f"{local_time(last.timestamp_ms)}, {size(last.size_bytes)} ({last.cause})"
    )
