"""How long a scale-in that was refused rests. A core: no clock, no IO.

A refusal comes of a plan over all partitions, so it is not asked for at each look. The rest is longer after each
refusal, up to a bound, for what refuses may change unseen: a cordon that an operator takes back. It ends at once when
other brokers serve, or the disks of those that do have clearly more room, or fewer replicas are there.
"""

from collections.abc import Set
from dataclasses import dataclass

REST_MIN_MS = 15_000
REST_MAX_MS = 300_000
_ROOM_PERCENT = 110  # of what it was: reports of free bytes always differ a little


@dataclass(frozen=True, slots=True)
class Standpoint:
    """What a refusal may depend on: the brokers that serve and stay, and what is free and held there in sum."""

    broker_ids: Set[int]
    free_bytes: int
    partition_count: int


class Rest:
    """Of one role. It has begun at the first refusal, and lasts until a broker goes or other brokers serve."""

    def __init__(self) -> None:
        self._refusal = ""
        self._standpoint = Standpoint(frozenset(), 0, 0)
        self._duration_ms = 0
        self._until_ms = 0

    def __repr__(self) -> str:
        return f"<Rest of {self._duration_ms} ms {self._refusal}>"

    def begin(self, refusal: str, standpoint: Standpoint, now_ms: int) -> bool:
        """It was refused. Whether that is the first time."""
        is_first = not self._refusal
        self._refusal, self._standpoint = refusal, standpoint
        self._duration_ms = REST_MIN_MS if is_first else min(2 * self._duration_ms, REST_MAX_MS)
        self._until_ms = now_ms + self._duration_ms
        return is_first

    def holds(self, standpoint: Standpoint, now_ms: int) -> str:
        """Why nothing is to be asked for now; empty where it may be."""
        if standpoint.broker_ids != self._standpoint.broker_ids:
            self.end()
        return "" if now_ms >= self._until_ms or self._is_easier(standpoint) else self._refusal

    def end(self) -> None:
        """What was refused is over: the next refusal is news."""
        self._refusal = ""
        self._until_ms = 0

    def _is_easier(self, standpoint: Standpoint) -> bool:
        before = self._standpoint
        has_room = 100 * standpoint.free_bytes > _ROOM_PERCENT * before.free_bytes
        return has_room or standpoint.partition_count < before.partition_count
