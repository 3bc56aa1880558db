"""Bugs on purpose in how nodes host state machines on partitions and on a quorum, in the form of `planted_bugs`."""

from typing import Any

from rayka.node.hosted_shards import PartitionLog
from rayka.node.quorum_log import QuorumLog
from rayka.sim.registers import CHANGES, Registers
from rayka.sim.world.faults import FaultKind
from tests.sim.planting import SHORT, PlantedBug, planted
from tests.sim.registers_on_quorum import VOTERS, run_on_quorum

FAILING_OVER: dict[str, Any] = {
    "voters": 1,
    "brokers": 3,
    "clients": 1,
    "ops_per_second": 0.5,
    "registers": 4,
    "voter_changes": False,
    "latency_ms": 5.0,
    "jitter_ms": 5.0,
    "loss": 0.0,
    "fault_kinds": (FaultKind.KILL, FaultKind.ISOLATE, FaultKind.CUT_LINK, FaultKind.PAUSE),
    "faults_per_minute": 60.0,
    "config": {
        "broker_session_timeout_ms": 800,
        "broker_heartbeat_interval_ms": 200,
        "replica_lag_time_max_ms": 2_000,
        "replica_fetch_wait_max_ms": 500,
    },
}

ON_QUORUM: dict[str, Any] = VOTERS | {
    "latency_ms": 5.0,
    "jitter_ms": 5.0,
    "loss": 0.0,
    "fault_kinds": FAILING_OVER["fault_kinds"],
    "faults_per_minute": 60.0,
    "config": {
        "controller_quorum_election_timeout_ms": 150,
        "controller_quorum_fetch_timeout_ms": 300,
        "controller_quorum_request_timeout_ms": 300,
        "controller_quorum_election_backoff_max_ms": 150,
        "metadata_log_max_record_bytes_between_snapshots": 500,
        "metadata_max_retention_bytes": 1_000,
    },
}


def takes_its_own_high_watermark_for_the_truth(_: Any) -> property:
    """A new leader does not know yet of all that its predecessor committed (A41)."""
    return property(lambda self: self._partition.high_watermark)


def takes_what_it_appended_for_committed(original: Any) -> property:
    def high_watermark(self: PartitionLog[Any]) -> int:
        return self.next_offset if self._partition.is_leader else int(original.fget(self))

    return property(high_watermark)


def forgets_the_leases(_: Any) -> Any:
    def on_active(self: Registers, *, now_ms: int, next_offset: int) -> list[Any]:
        return []

    return on_active


def takes_what_the_quorum_appended_for_committed(original: Any) -> property:
    return property(lambda self: self.next_offset if self.leading_epoch else original.fget(self))


def reads_beyond_the_high_watermark(original: Any) -> Any:
    def committed(self: QuorumLog[Any], offset: int) -> Any:
        if self.high_watermark <= offset:
            return original(self, offset)
        log = self._quorum.log
        read = log.read(offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
        return CHANGES.committed(read.records, offset), read.next_offset

    return committed


def lacks_the_last_record(original: Any) -> Any:
    return lambda self, next_offset: list(original(self, next_offset))[:-1]


SHARD_BUGS = [
    PlantedBug(
        "a new leader's shard does not wait for what its predecessor committed",
        "register-lost",
        planted(PartitionLog, "high_watermark", takes_its_own_high_watermark_for_the_truth),
        4,
        FAILING_OVER,
        seconds=SHORT,
    ),
    PlantedBug(
        "a shard answers before its records are committed",
        "register-lost",
        planted(PartitionLog, "high_watermark", takes_what_it_appended_for_committed),
        4,
        FAILING_OVER,
    ),
    PlantedBug(
        "timers do not outlive their leader",
        "liveness",
        planted(Registers, "on_active", forgets_the_leases),
        2,
        FAILING_OVER,
    ),
    PlantedBug(
        "a shard on a quorum answers before its records are committed",
        "register-lost",
        planted(QuorumLog, "high_watermark", takes_what_the_quorum_appended_for_committed),
        1,
        ON_QUORUM,
        seconds=SHORT,
        simulate=run_on_quorum,
    ),
    PlantedBug(
        "a shard on a quorum is told of records above the high watermark",
        "register-standby",
        planted(QuorumLog, "committed", reads_beyond_the_high_watermark),
        1,
        ON_QUORUM,
        seconds=SHORT,
        simulate=run_on_quorum,
    ),
    PlantedBug(
        "a snapshot lacks the last record",
        "register-standby",
        planted(Registers, "snapshot", lacks_the_last_record),
        1,
        ON_QUORUM,
        seconds=SHORT,
        simulate=run_on_quorum,
    ),
]
