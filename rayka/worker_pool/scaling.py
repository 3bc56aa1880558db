"""The wanted number of workers of a pool, from the group's lag and the speed of the workers.

Changes by one worker, and not before the last change is complete. Up: at the current speed the waiting records would
take longer than the target, for `_UP_AFTER_S`. Down: one worker fewer would still be idle part of the time, for
`DOWN_AFTER_S`. Between the two nothing changes, so a pool comes to rest. Pure: the caller brings the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from rayka.client.admin.admin import Admin
from rayka.client.bootstrap import ClusterHandle
from rayka.client.consumer.consumer import Consumer
from rayka.ids import TopicPartition

_UP_AFTER_S = 3.0
DOWN_AFTER_S = 30.0
# The share of the remaining workers' time that may be busy before one worker is taken away.
_BUSY_MAX = 0.7


@dataclass(frozen=True, slots=True)
class Look:
    """The load of a pool at one time."""

    at_s: float
    workers: int
    # Records that the group has not committed.
    lag_records: int
    records_per_s: float
    # Time in user code, in units of one worker's full time: 1.5 is one and a half workers.
    busy: float
    # The last change of the number of workers is not complete.
    waits: bool = False

    @property
    def lag_s(self) -> float:
        """The time that the workers need for the waiting records."""
        if self.lag_records == 0:
            return 0.0
        return self.lag_records / self.records_per_s if self.records_per_s > 0 else inf


class WorkerScaling:
    """Decides the number of workers; without a target always `least`."""

    def __init__(self, least: int, most: int, target_lag_s: float | None) -> None:
        self._least = least
        self._most = most
        self._target_lag_s = target_lag_s
        self._too_slow_since_s: float | None = None
        self._idle_since_s: float | None = None

    def __repr__(self) -> str:
        return f"<Scaling {self._least} to {self._most} target={self._target_lag_s}>"

    def wanted(self, look: Look, partition_count: int) -> int:
        """The wanted number of workers, at most one per partition and never below `least`."""
        most = max(self._least, min(self._most, partition_count))
        if self._target_lag_s is None or look.waits:
            self._too_slow_since_s = self._idle_since_s = None
            return min(max(look.workers, self._least), most)
        is_too_slow = look.lag_s > self._target_lag_s
        is_idle = not is_too_slow and look.busy < _BUSY_MAX * (look.workers - 1)
        self._too_slow_since_s = _since(self._too_slow_since_s, look.at_s, is_so=is_too_slow)
        self._idle_since_s = _since(self._idle_since_s, look.at_s, is_so=is_idle)
        step = 0
        if self._too_slow_since_s is not None and look.at_s - self._too_slow_since_s >= _UP_AFTER_S:
            step = 1
        elif self._idle_since_s is not None and look.at_s - self._idle_since_s >= DOWN_AFTER_S:
            step = -1
        if step:
            self._too_slow_since_s = self._idle_since_s = None
        return min(max(look.workers + step, self._least), most)


def _since(known_s: float | None, at_s: float, *, is_so: bool) -> float | None:
    if not is_so:
        return None
    return at_s if known_s is None else known_s


class GroupLag:
    """Reads a group's lag with separate clients outside of the group. Made and used on one thread."""

    def __init__(
        self, cluster: ClusterHandle, group_id: str, topics: Sequence[str], *, begins_at_end: bool = False
    ) -> None:
        """`begins_at_end`: in a partition without a committed offset no existing record counts as lag."""
        self._topics = topics
        self._begins_at_end = begins_at_end
        self._admin = Admin(cluster=cluster)
        self._consumer = Consumer(cluster=cluster, group_id=group_id, enable_auto_commit=False)

    def __repr__(self) -> str:
        return f"<GroupLag of {list(self._topics)}>"

    def check_topics(self) -> None:
        """Raises UnknownTopicOrPartition if a topic does not exist."""
        self._admin.describe_topics(self._topics)

    def look(self) -> tuple[int, int]:
        """The uncommitted records, and the number of partitions. Raises the errors of `committed` and `end_offsets`."""
        partitions = [
            TopicPartition(each.name, number)
            for each in self._admin.describe_topics(self._topics)
            for number in range(len(each.partitions))
        ]
        ends = self._consumer.end_offsets(partitions)
        begins = self._consumer.beginning_offsets(partitions)
        committed = self._consumer.committed(partitions)
        starts = ends if self._begins_at_end else begins
        done = {tp: max(begins[tp], at.offset) for tp, at in committed.items() if at is not None}
        return sum(ends[tp] - done.get(tp, starts[tp]) for tp in partitions), len(partitions)

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()
