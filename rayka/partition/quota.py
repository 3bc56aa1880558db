"""How much replication traffic a broker allows itself, and which replicas count (B45, G17).

The rate is what was recorded in the last 11 samples of a second, over the time since the oldest of them, at least one
second. Nothing is refused in the middle: a reader or fetcher asks first, and goes without while the rate is exceeded.
Replicas in the ISR are exempt; the caller knows which those are. What a reassignment adds has a quota of its own, which
follows from the metadata: it begins and ends with the reassignment, whichever controller leads. That is Rayka's own,
and paced: what comes at once takes disks and processors for as long, and clients wait meanwhile.
Kafka: `ReplicationQuotaManager`, `SimpleRate`, `ReplicaManager.shouldLeaderThrottle`.
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
    """One direction on one broker: what it sends as a leader, or what it fetches as a follower.

    Invariant: samples are in the order of time, each of less than a second.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._samples: deque[_Sample] = deque()

    def __repr__(self) -> str:
        held_bytes = sum(each.size_bytes for each in self._samples)
        return f"<ReplicationQuota {self.bytes_per_second} B/s held={held_bytes}>"

    def record(self, size_bytes: int, now_ms: int) -> None:
        """So much was sent or fetched for throttled replicas."""
        self._forget(now_ms)
        if not self._samples or now_ms - self._samples[-1].start_ms >= SAMPLE_MS:
            self._samples.append(_Sample(now_ms, 0))
        self._samples[-1].size_bytes += size_bytes

    def pause_ms(self, now_ms: int) -> int:
        """How long throttled replicas wait before they ask again, because the rate is above the bound; 0: they need not
        wait.
        """
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
    """As `ReplicationQuota`, but at most what the rate allows in `PACE_MS` is ahead of it, however little there was
    before: what goes beyond that is waited for in full.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._ahead = 0  # in thousandths of a byte, for times are in ms
        self._at_ms = 0

    def __repr__(self) -> str:
        return f"<PacedQuota {self.bytes_per_second} B/s ahead={self._ahead // 1000}>"

    def record(self, size_bytes: int, now_ms: int) -> None:
        """So much was sent or fetched for throttled replicas."""
        self._pass(now_ms)
        self._ahead += 1000 * size_bytes

    def pause_ms(self, now_ms: int) -> int:
        """How long they wait, at most a second, for the rate can change; 0: they need not wait."""
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
    """Those of one direction: of replicas that their topics name, and of those that a reassignment adds."""

    named: ReplicationQuota
    added: PacedQuota

    def of(
        self, throttled_replicas: str, partition: int, broker_id: int, *, is_added: bool
    ) -> tuple[Quota, ...]:
        """Those that count a replica: whether its topic's list names it, and whether a reassignment adds it."""
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
