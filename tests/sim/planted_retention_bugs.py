"""Bugs on purpose in retention, in the form of `planted_bugs`."""

from typing import Any

from rayka.log import retention
from rayka.log.segment_removal import RetiredSegments
from rayka.sim.run_options import TopicPlan
from rayka.sim.world.faults import FaultKind
from tests.sim.planting import SHORT, PlantedBug, planted

EXPIRING: dict[str, Any] = {
    "voters": 1,
    "brokers": 3,
    "voter_changes": False,
    "expires": True,
    "topics": (TopicPlan("data0"),),
    "producers": 2,
    "records_per_second": 40.0,
    "latency_ms": 5.0,
    "jitter_ms": 5.0,
    "loss": 0.0,
    "fault_kinds": (FaultKind.KILL, FaultKind.POWER_LOSS, FaultKind.ISOLATE),
    "faults_per_minute": 30.0,
}


def expires_what_is_not_committed(original: Any) -> Any:
    return lambda log, bound, has_expired: original(log, log.log_end_offset, has_expired)


def is_as_old_as_the_oldest_record(_: Any) -> Any:
    return lambda segment, clock: clock.timestamp_ms - segment.first_timestamp_ms


def keeps_a_segment_too_few(_: Any) -> Any:
    def covers(self: Any, segment: Any) -> bool:
        is_covered: bool = self._left_bytes > 0
        self._left_bytes -= segment.size_bytes
        return is_covered

    return covers


def never_writes_where_the_log_begins(original: Any) -> Any:
    def raise_start(self: RetiredSegments, first_offset: int) -> None:
        if "/data" not in self._files.directory.removeprefix("/data"):
            original(self, first_offset)

    return raise_start


RETENTION_BUGS = [
    PlantedBug(
        "deletion above the high watermark",
        "retention",
        planted(retention.__dict__, "_going", expires_what_is_not_committed),
        9,
        EXPIRING,
        seconds=SHORT,
    ),
    PlantedBug(
        "a segment is as old as its oldest record",
        "retention",
        planted(retention.__dict__, "_age_ms", is_as_old_as_the_oldest_record),
        1,
        EXPIRING,
    ),
    PlantedBug(
        "size retention removes the segment that makes the log too small",
        "retention",
        planted(retention._Surplus, "covers", keeps_a_segment_too_few),
        2,
        EXPIRING,
    ),
    PlantedBug(
        "a log start that is not written before the files go",
        "liveness",
        planted(RetiredSegments, "_raise_start", never_writes_where_the_log_begins),
        2,
        EXPIRING | {"fault_kinds": (FaultKind.KILL,), "faults_per_minute": 120.0},
    ),
]
