"""Bugs on purpose in how brokers host state machines on partitions, in the form of `planted_bugs`."""

from typing import Any

from rayka.node.hosting.partition_log import PartitionLog
from rayka.sim.registers import Registers
from rayka.sim.world.faults import FaultKind
from tests.sim.planting import SHORT, PlantedBug, planted

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
]
