"""Quotas of replication traffic on a broker, and the replicas that they count (B45, G17).

The rate is the traffic of the last 11 samples of a second, over the time since the oldest of them, at least one second.
No transfer is refused in the middle: a reader or fetcher asks first, and waits while the rate is exceeded. Replicas in
the ISR are exempt; the caller knows which those are.

The traffic that a reassignment adds has its own quota, which follows from the metadata: it begins and ends with the
reassignment, whichever controller leads. This quota is Rayka's own, and paced: a burst keeps disks and processors busy,
and clients wait in that time. Kafka: `ReplicationQuotaManager`, `SimpleRate`, `ReplicaManager.shouldLeaderThrottle`.
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

SAMPLE_MS = 1_000
PACE_MS = 20
SAMPLES_MAX = 11
_CACHED_MAX = 1024
_EVERY_REPLICA = "*"


@dataclass(slots=True)
class _Sample:
    start_ms: int
    size_bytes: int


class ReplicationQuota:
    """One direction on one broker: traffic sent as a leader, or fetched as a follower.

    Invariant: samples are in the order of time, each shorter than a second.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._samples: deque[_Sample] = deque()

    def __repr__(self) -> str:
        held_bytes = sum(each.size_bytes for each in self._samples)
        return f"<ReplicationQuota {self.bytes_per_second} B/s held={held_bytes}>"

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Counts bytes sent or fetched for throttled replicas."""
        self._forget(now_ms)
        if not self._samples or now_ms - self._samples[-1].start_ms >= SAMPLE_MS:
            self._samples.append(_Sample(now_ms, 0))
        self._samples[-1].size_bytes += size_bytes

    def pause_ms(self, now_ms: int) -> int:
        """How long throttled replicas wait before they ask again; 0 while the rate is within the bound."""
        self._forget(now_ms)
        if not self._samples:
            return 0
        elapsed_ms = max(now_ms - self._samples[0].start_ms, SAMPLE_MS)
        size_bytes = sum(each.size_bytes for each in self._samples)
        return SAMPLE_MS if size_bytes * 1000 > self.bytes_per_second * elapsed_ms else 0

    def _forget(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0].start_ms >= SAMPLES_MAX * SAMPLE_MS:
            self._samples.popleft()


class PacedQuota:
    """As `ReplicationQuota`, but at most as much as the rate allows in `PACE_MS` goes ahead of it, however little went
    before: bytes beyond that are waited for in full.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        # In thousandths of a byte, because times are in ms.
        self._ahead = 0
        self._at_ms = 0

    def __repr__(self) -> str:
        return f"<PacedQuota {self.bytes_per_second} B/s ahead={self._ahead // 1000}>"

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Counts bytes sent or fetched for throttled replicas."""
        self._pass(now_ms)
        self._ahead += 1000 * size_bytes

    def pause_ms(self, now_ms: int) -> int:
        """How long throttled replicas wait, at most a second, because the rate can change; 0: no wait."""
        self._pass(now_ms)
        too_far = self._ahead - self.bytes_per_second * PACE_MS
        if too_far <= 0:
            return 0
        if not self.bytes_per_second:
            return SAMPLE_MS
        return min(SAMPLE_MS, -(-too_far // self.bytes_per_second))

    def _pass(self, now_ms: int) -> None:
        self._ahead = max(0, self._ahead - self.bytes_per_second * (now_ms - self._at_ms))
        self._at_ms = now_ms


Quota = ReplicationQuota | PacedQuota


class ReplicationQuotas(NamedTuple):
    """The quotas of one direction: of replicas that their topics name, and of replicas that a reassignment adds."""

    named: ReplicationQuota
    added: PacedQuota

    def of(
        self, throttled_replicas: str, partition: int, broker_id: int, *, is_added: bool
    ) -> tuple[Quota, ...]:
        """The quotas that count a replica: of its topic's list, and of a reassignment that adds it."""
        named: tuple[Quota, ...] = (self.named,) * is_throttled(throttled_replicas, partition, broker_id)
        return named + (self.added,) * is_added


def is_throttled(throttled_replicas: str, partition: int, broker_id: int) -> bool:
    """Whether a topic's `leader.` or `follower.replication.throttled.replicas` names this replica.

    The leader's list names leaders' replicas, the follower's list those that fetch.
    """
    if not throttled_replicas:
        return False
    return throttled_replicas == _EVERY_REPLICA or (partition, broker_id) in _parsed(throttled_replicas)


@lru_cache(_CACHED_MAX)
def _parsed(throttled_replicas: str) -> frozenset[tuple[int, int]]:
    pairs = (each.split(":") for each in throttled_replicas.split(","))
    return frozenset((int(partition), int(broker_id)) for partition, broker_id in pairs)
