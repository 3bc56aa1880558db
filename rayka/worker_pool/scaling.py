"""The number of workers that a pool wants, from the lag and the speed of the workers.

One step at a time, and none before the last one is through. Up: what waits takes longer than the target at the speed of
now, in several looks one after another. Down: one worker fewer would still have time to spare, for much longer. Between
the two nothing changes, so a pool comes to rest. Pure: the caller brings the time.
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
_BUSY_MAX = 0.7  # of the workers that would be left


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at a time. `busy` is how many workers' time went into user code, `waits` whether the last step is
    still under way.
    """

    at_s: float
    workers: int
    lag_records: int
    records_per_s: float
    busy: float
    waits: bool = False

    @property
    def lag_s(self) -> float:
        """The time that the workers need for the waiting records."""
        if self.lag_records == 0:
            return 0.0
        return self.lag_records / self.records_per_s if self.records_per_s > 0 else inf


class WorkerScaling:
    """See the module. Without a target there are `least` workers."""

    def __init__(self, least: int, most: int, target_lag_s: float | None) -> None:
        self._least = least
        self._most = most
        self._target_lag_s = target_lag_s
        self._too_slow_since_s: float | None = None
        self._idle_since_s: float | None = None

    def __repr__(self) -> str:
        return f"<Scaling {self._least} to {self._most} target={self._target_lag_s}>"

    def wanted(self, look: Look, partition_count: int) -> int:
        """So many workers; a worker without a partition would have nothing to do."""
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


# What waits for a group: how many records of its topics it has not committed yet.


class GroupLag:
    """Reads a group's lag with separate clients outside of the group. Made and used on one thread."""

    def __init__(
        self, cluster: ClusterHandle, group_id: str, topics: Sequence[str], *, begins_at_end: bool = False
    ) -> None:
        """`begins_at_end`: where the group has committed nothing, what is there already does not wait for it."""
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
        """The records that wait, and the number of partitions. Raises what `committed` and `end_offsets` raise."""
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
