"""The demo's group: consumers that share the topic, each a Ray actor, of which one is killed half way.

A member commits what it was given when it is asked for more, so that each record is given at least once: the last read
of the member that is killed is given again to those that take its partitions. Records are told apart by partition and
offset, so what was given twice is counted, and summed up once.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import rayka
from rayka.actors import ray_nodes
from rayka.actors.ray_nodes import own_ray_node_id
from rayka.errors import IllegalGeneration, RebalanceInProgress, UnavailableError, UnknownMemberId
from rayka_demo.flights import record_hash, sum_of_hashes

GROUP_ID = "demo"
MEMBER_COUNT = 3
_SESSION_MS = 6_000  # the shortest that brokers allow: so long the lost member's partitions wait
_HEARTBEAT_MS = 1_000  # a busy machine may be late with some
_RECORDS_A_READ = 5_000
_POLL_MS = 100
_SILENCE_S_MAX = 45.0
_MOVED_ON = (RebalanceInProgress, IllegalGeneration, UnknownMemberId)  # it is committed with the next records


class Read(NamedTuple):
    """One answer of a member: its partitions, and partition, offset and hash of each record that it was given."""

    assignment: tuple[int, ...]
    records: list[tuple[int, int, int]]


class Member:
    """A consumer of the group, as an actor. It reads nothing before it is asked to."""

    def __init__(self, cluster_name: str, topic: str) -> None:
        self._has_given_away = False
        self._is_uncommitted = False
        self._consumer = rayka.Consumer(
            cluster=cluster_name,
            group_id=GROUP_ID,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            partition_assignment_strategy="cooperative-sticky",
        )
        self._consumer.subscribe(topic, on_assign=self._on_assign, on_revoke=self._on_revoke)

    def pid(self) -> int:
        """Of its process."""
        return os.getpid()

    def join(self) -> Read:
        """Takes part in the group, and reads nothing. What it gives away from then on counts."""
        joined = self._poll()
        self._has_given_away = False
        return joined

    def read(self) -> Read:
        """Commits what was given by the last call, and reads on."""
        self._maybe_commit()
        self._consumer.resume(*self._consumer.paused())
        return self._poll()

    def leave(self) -> bool:
        """Commits, and leaves the group; whether it has kept all partitions that it had."""
        self._maybe_commit()
        has_kept_all = not self._has_given_away
        self._consumer.close()
        return has_kept_all

    def _poll(self) -> Read:
        records = self._consumer.poll(_POLL_MS, max_records=_RECORDS_A_READ)
        self._is_uncommitted = self._is_uncommitted or bool(records)
        given = [
            (each.partition, each.offset, record_hash(each.key, each.value, each.timestamp_ms))
            for each in records
        ]
        return Read(tuple(sorted(tp.partition for tp in self._consumer.assignment())), given)

    def _maybe_commit(self) -> None:
        if self._is_uncommitted:
            try:
                self._consumer.commit()
            except _MOVED_ON:
                return
            self._is_uncommitted = False

    def _on_assign(self, partitions: list[rayka.TopicPartition]) -> None:
        self._consumer.pause(*partitions)

    def _on_revoke(self, partitions: list[rayka.TopicPartition]) -> None:
        self._has_given_away = self._has_given_away or bool(partitions)


class Loss:
    """What became of the partitions of a member that was killed."""

    def __init__(self, member: str, had: tuple[int, ...]) -> None:
        self.member = member
        self.had = had
        self.moved_to: dict[str, tuple[int, ...]] = {}
        self.seconds = 0.0  # until all of them had another member
        self._lost_at = time.monotonic()

    def look(self, assignments: dict[str, tuple[int, ...]]) -> None:
        """Notices which of its partitions the others have by now."""
        if self.seconds:
            return
        news = {name: tuple(p for p in now if p in self.had) for name, now in assignments.items()}
        self.moved_to = {name: partitions for name, partitions in news.items() if partitions}
        if sorted(p for partitions in self.moved_to.values() for p in partitions) == list(self.had):
            self.seconds = time.monotonic() - self._lost_at


class Group:
    """The members, and what they were given. A partition that no member reads for 45 s ends the reading."""

    def __init__(self, cluster: rayka.Cluster, topic: str) -> None:
        own = own_ray_node_id()
        make: Any = ray.remote(Member).options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(own, soft=False),
            runtime_env=ray_nodes.actor_environment([own]),
        )
        self._members = {
            f"member-{number}": make.remote(cluster.name, topic) for number in range(1, MEMBER_COUNT + 1)
        }
        with rayka.Consumer(topic, cluster=cluster) as consumer:
            self._ends = {
                tp.partition: end for tp, end in consumer.end_offsets(consumer.assignment()).items()
            }
        self.assignments: dict[str, tuple[int, ...]] = dict.fromkeys(self._members, ())
        self._hashes: dict[tuple[int, int], int] = {}
        self._reads: dict[Any, str] = {}
        self.loss: Loss | None = None
        self.given_count = 0

    @property
    def record_count(self) -> int:
        """How many records the topic has."""
        return sum(self._ends.values())

    @property
    def distinct_count(self) -> int:
        """How many of them were given, each counted once."""
        return len(self._hashes)

    @property
    def checksum(self) -> int:
        """Of the records that were given, each once."""
        return sum_of_hashes(self._hashes.values())

    def join(self) -> None:
        """Until each partition has a member, and each member has some. Raises UnavailableError when that takes more
        than 45 s.
        """
        deadline = time.monotonic() + _SILENCE_S_MAX
        while not all(self.assignments.values()) or not self._is_shared:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"group {GROUP_ID!r} has not shared {len(self._ends)} partitions within {_SILENCE_S_MAX:g} s: "
                    f"{self.assignments}; see `rayka group describe {GROUP_ID}`"
                )
            joining = {name: member.join.remote() for name, member in self._members.items()}
            for name, answer in joining.items():
                self._note(name, _answered(answer))

    def read(self, count: int) -> Iterator[int]:
        """Reads on until so many records were given; how many are new, read by read. Ends after 45 s without any."""
        last_read_at = time.monotonic()
        while self.distinct_count < count or not self._is_shared:
            for name in self._members.keys() - set(self._reads.values()):
                self._reads[self._members[name].read.remote()] = name
            for done in ray.wait(list(self._reads), timeout=_SILENCE_S_MAX)[0]:
                if new := self._note(self._reads.pop(done), _answered(done)):
                    last_read_at = time.monotonic()
                    yield new
            if time.monotonic() - last_read_at > _SILENCE_S_MAX:
                return

    def member_with_most_left(self) -> str:
        """That which has the most records yet to read."""
        given = Counter(partition for partition, _ in self._hashes)
        left = {
            name: sum(self._ends[each] - given[each] for each in had)
            for name, had in self.assignments.items()
        }
        return max(left, key=lambda each: left[each])

    def lose(self, name: str) -> Loss:
        """Kills the member's process, as `kill -9` does, after its last answer."""
        for answer in [each for each, reader in self._reads.items() if reader == name]:
            self._note(self._reads.pop(answer), _answered(answer))
        member, had = self._members.pop(name), self.assignments.pop(name)
        os.kill(_answered(member.pid.remote()), signal.SIGKILL)
        self.loss = Loss(name, had)
        return self.loss

    def leave(self) -> bool:
        """All leave; whether each has kept all partitions that it had."""
        for answer, name in self._reads.items():
            self._note(name, _answered(answer))
        leaving = [member.leave.remote() for member in self._members.values()]
        have_kept = [_answered(each) for each in leaving]
        return all(have_kept)

    @property
    def _is_shared(self) -> bool:
        owned = sorted(p for partitions in self.assignments.values() for p in partitions)
        return owned == sorted(self._ends)

    def _note(self, name: str, read: Read) -> int:
        """How many of the records are new. Raises UnavailableError for a record that was another one before."""
        self.assignments[name] = read.assignment
        if self.loss is not None:
            self.loss.look(self.assignments)
        before = len(self._hashes)
        for partition, offset, digest in read.records:
            if self._hashes.setdefault((partition, offset), digest) != digest:
                raise UnavailableError(f"partition {partition} gave two records at offset {offset}")
        self.given_count += len(read.records)
        return len(self._hashes) - before


def _answered(answer: Any) -> Any:
    """What a member answers. Raises UnavailableError when its process has ended, which no one told it to."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayActorError as error:
        raise UnavailableError(f"a member of group {GROUP_ID!r} has ended: {error}") from error
