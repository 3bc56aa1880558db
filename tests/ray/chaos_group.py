"""A consumer group among faults: members that are Ray actors on the machines, and what they must have been given.

A member writes each record that it is given to a file of its own before it commits, so what was committed is written
down, however its process ends. The files are on the disk of the test, which is lost with no machine.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import ray
from ray import cloudpickle

import rayka
from rayka.cluster import Cluster
from rayka.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    RebalanceInProgress,
    UnavailableError,
    UnknownMemberId,
)
from rayka.ids import NO_OFFSET
from rayka.protocol.groups import GroupState
from tests.ray.sender import Sender
from tests.ray.support import kill

GROUP_ID = "readers"
MEMBERS = 4
_SESSION_MS = 6_000  # the shortest that brokers allow
_RETURN_S = (1, 10)  # after so long another member comes in the place of one that has ended
_LEAVES_SHARE = 0.3  # of the members that end, by `close` instead of by SIGKILL
_SETTLE_S = 90
_STOP_S = 60
_LOOK_S = 0.5
_MOVED_ON = (IllegalGeneration, UnknownMemberId, RebalanceInProgress)
# Actors have no tests to import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# ---- A member --------------------------------------------------------------------------------------------------------


class Member:
    """The actor: `run` in one thread, until `stop`. Every other member commits by itself, the rest automatically."""

    def __init__(self, cluster_name: str, topics: tuple[str, ...], number: int, path: str) -> None:
        self._cluster_name = cluster_name
        self._topics = topics
        self._commits = number % 2 == 0
        self._diary = open(path, "a")  # noqa: SIM115, closed by the end of the process, whichever that is
        self._diary.write(f"P {os.getpid()}\n")
        self._diary.flush()
        self._is_new: set[rayka.TopicPartition] = set()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """`run` leaves the group and returns soon."""
        self._stopping.set()

    def run(self) -> None:
        """Reads, writes down and commits."""
        with rayka.Consumer(
            cluster=self._cluster_name,
            group_id=GROUP_ID,
            auto_offset_reset="earliest",
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=1_000,
            partition_assignment_strategy="cooperative-sticky",
            enable_auto_commit=not self._commits,
            auto_commit_interval_ms=500,
        ) as consumer:
            consumer.subscribe(self._topics, on_assign=self._is_new.update)
            while not self._stopping.is_set():
                records = consumer.poll(timeout_ms=200)
                self._write_down(records, consumer.group_metadata().generation_id)
                if records and self._commits:
                    self._commit(consumer, records)

    def _write_down(self, records: list[rayka.Record], generation_id: int) -> None:
        for each in records:
            tp = rayka.TopicPartition(each.topic, each.partition)
            if tp in self._is_new:
                self._is_new.discard(tp)
                self._diary.write(f"B {each.topic} {each.partition} {each.offset} {generation_id}\n")
            self._diary.write(
                f"R {each.topic} {each.partition} {each.offset} {(each.value or b'').decode()}\n"
            )
        self._diary.flush()

    def _commit(self, consumer: rayka.Consumer, records: list[rayka.Record]) -> None:
        generation_id = consumer.group_metadata().generation_id
        offsets = {(each.topic, each.partition): each.offset + 1 for each in records}
        try:
            consumer.commit()
        except _MOVED_ON as error:
            self._diary.write(f"F {type(error).__name__}\n")
            return
        self._diary.write(f"T {time.monotonic()}\n")
        for (topic, partition), offset in offsets.items():
            self._diary.write(f"C {topic} {partition} {offset} {generation_id}\n")


# ---- The group -------------------------------------------------------------------------------------------------------


class _Actor(NamedTuple):
    handle: Any
    end: Any  # of `run`
    path: Path


class Group:
    """Members that are ended, and others that come in their place."""

    def __init__(self, cluster: Cluster, topics: tuple[str, ...], directory: Path, random: Random) -> None:
        directory.mkdir()
        self._cluster = cluster
        self._topics = topics
        self._directory = directory
        self._random = random
        self._members: list[_Actor] = []
        self._returns_at: list[float] = []
        self.started = 0
        self.problems: list[str] = []
        for _ in range(MEMBERS):
            self._add()

    def _add(self) -> None:
        path = self._directory / f"{self.started}.txt"
        make: Any = ray.remote(Member).options(
            num_cpus=0, resources={"machine": 0.01}, scheduling_strategy="SPREAD", max_concurrency=2
        )
        handle = make.remote(self._cluster.name, self._topics, self.started, str(path))
        self._members.append(_Actor(handle, handle.run.remote(), path))
        self.started += 1

    def end_one(self) -> str:
        """Kills a member, or has it leave; in a while another one comes. What was done, empty if none runs."""
        pids = {each: _pid(each.path) for each in self._members}
        running = [each for each, pid in pids.items() if pid]
        self._random.shuffle(running)
        leaves = self._random.random() < _LEAVES_SHARE
        for each in running:
            if leaves:
                each.handle.stop.remote()
                return f"member {each.path.stem} leaves"
            with suppress(ProcessLookupError):  # it went with its machine
                kill(pids[each])
                return f"process {pids[each]} of member {each.path.stem}"
        return ""

    def tick(self) -> None:
        """Notices members that have ended, and starts those whose time has come."""
        ends = {each.end: each for each in self._members}
        ended, _ = ray.wait(list(ends), num_returns=len(ends), timeout=0) if ends else ([], [])
        for each in ended:
            self._members.remove(ends[each])
            self._note_end(ends[each])
            self._returns_at.append(time.monotonic() + self._random.uniform(*_RETURN_S))
        due = [each for each in self._returns_at if each <= time.monotonic()]
        for at in due:
            self._returns_at.remove(at)
            self._add()

    def _note_end(self, member: _Actor) -> None:
        try:
            ray.get(member.end, timeout=0)
        except ray.exceptions.RayActorError:
            pass  # killed, or its machine was
        except ray.exceptions.RayError as error:
            self.problems.append(f"member {member.path.stem} raised: {error}")

    def await_members(self) -> None:
        """Until all members have joined, and each partition has one of them. That it does not is a problem."""
        self._await(self._unowned)

    def settle(self) -> float:
        """Until, besides, the group has committed all there is; seconds that took. That it does not is a problem."""
        return self._await(lambda admin: self._unowned(admin) or self._behind(admin))

    def _await(self, missing: Callable[[rayka.Admin], str]) -> float:
        began_s = time.monotonic()
        with rayka.Admin(cluster=self._cluster) as admin:
            while what := missing(admin):
                if time.monotonic() - began_s > _SETTLE_S:
                    self.problems.append(f"the group has not settled after {_SETTLE_S} s: {what}")
                    break
                time.sleep(_LOOK_S)
        return time.monotonic() - began_s

    def _unowned(self, admin: rayka.Admin) -> str:
        """What is missing, empty when nothing is."""
        self.tick()
        if len(self._members) < MEMBERS:
            return f"{len(self._members)} members run"
        try:
            group = admin.describe_group(GROUP_ID)
        except GroupIdNotFound:
            return "none has joined"
        if group.state is not GroupState.STABLE or len(group.members) != MEMBERS:
            return f"{group}"
        owned = Counter(tp for each in group.members for tp in each.assignment)
        return "" if owned == Counter(self._partitions(admin)) else f"owners are {owned}"

    def _behind(self, admin: rayka.Admin) -> str:
        lags = {each.topic_partition: each.lag for each in admin.group_offsets(GROUP_ID)}
        behind = {str(tp): lags.get(tp) for tp in self._partitions(admin) if lags.get(tp) != 0}
        return f"behind are {behind}" if behind else ""

    def _partitions(self, admin: rayka.Admin) -> list[rayka.TopicPartition]:
        return [
            rayka.TopicPartition(name, each.partition)
            for name in self._topics
            for each in admin.describe_topic(name).partitions
        ]

    def stop(self) -> None:
        """All members leave."""
        self._returns_at.clear()
        for each in self._members:
            each.handle.stop.remote()
        ended, late = (
            ray.wait([each.end for each in self._members], num_returns=len(self._members), timeout=_STOP_S)
            if self._members
            else ([], [])
        )
        for each in self._members:
            if each.end in ended:
                self._note_end(each)
        if late:
            self.problems.append(f"{len(late)} members did not leave within {_STOP_S} s")

    def diaries(self) -> "list[Diary]":
        return [Diary.read(path) for path in sorted(self._directory.iterdir())]


class OffsetWatch(threading.Thread):
    """Looks at what the group has committed, again and again, and notices when an offset goes back."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="offset watch")
        self._cluster = cluster
        self._stopping = threading.Event()
        self.looks = 0
        self.problems: list[str] = []

    def run(self) -> None:
        newest: dict[rayka.TopicPartition, int] = {}
        with rayka.Admin(cluster=self._cluster) as admin:
            while not self._stopping.wait(_LOOK_S):
                try:
                    found = {each.topic_partition: each.offset for each in admin.group_offsets(GROUP_ID)}
                except UnavailableError:
                    continue
                self.looks += 1
                self.problems += [
                    f"the committed offset of {tp} went from {offset} to {found.get(tp)}"
                    for tp, offset in newest.items()
                    if found.get(tp, NO_OFFSET) < offset
                ]
                newest |= found

    def stop(self) -> None:
        self._stopping.set()
        self.join(_STOP_S)
        assert not self.is_alive()


# ---- What came of it -------------------------------------------------------------------------------------------------

Place = tuple[str, int]  # topic and partition


class At(NamedTuple):
    """An offset where reading begins, or that was committed, in a generation."""

    place: Place
    offset: int
    generation_id: int


@dataclass
class Diary:
    """What a member wrote down."""

    name: str
    given: list[tuple[Place, int, bytes]]
    begins: list[At]
    commits: list[At]
    commit_times: list[float]
    refusals: list[str]

    @classmethod
    def read(cls, path: Path) -> "Diary":
        """Without a last line that the end of the process cut off."""
        diary = cls(path.stem, [], [], [], [], [])
        for kind, *fields in _lines(path):
            if kind == "R":
                diary.given.append(((fields[0], int(fields[1])), int(fields[2]), fields[3].encode()))
            elif kind in "BC":
                at = At((fields[0], int(fields[1])), int(fields[2]), int(fields[3]))
                (diary.begins if kind == "B" else diary.commits).append(at)
            elif kind == "T":
                diary.commit_times.append(float(fields[0]))
            elif kind == "F":
                diary.refusals.append(fields[0])
        return diary


def wrong_in(diaries: list[Diary], senders: list[Sender]) -> list[str]:
    """What a group must not do: leave out an acknowledged record, change one, or begin before what it had committed."""
    given: dict[tuple[Place, int], bytes] = {}
    problems = []
    for place, offset, value in (each for diary in diaries for each in diary.given):
        if given.setdefault((place, offset), value) != value:
            problems.append(f"{place} gave {value!r} and {given[place, offset]!r} at offset {offset}")
    for sender in senders:
        lost = {
            number: metadata
            for number, metadata in sender.acknowledged.items()
            if given.get(((sender.topic, metadata.partition), metadata.offset)) != b"%d" % number
        }
        if lost:
            some = dict(list(lost.items())[:5])
            problems.append(f"{len(lost)} acknowledged records were never given to the group: {some}")
    return problems + went_back(diaries)


def went_back(diaries: list[Diary]) -> list[str]:
    """Where a member began before what a member of an earlier generation had committed."""
    commits: dict[Place, list[At]] = {}
    for each in (each for diary in diaries for each in diary.commits):
        commits.setdefault(each.place, []).append(each)
    return [
        f"member {diary.name} began at {begin}, after {commit} was acknowledged"
        for diary in diaries
        for begin in diary.begins
        for commit in commits.get(begin.place, ())
        if commit.generation_id < begin.generation_id and commit.offset > begin.offset
    ]


def given_twice(diaries: list[Diary]) -> int:
    """How many times the group was given a record that it had been given before."""
    places = [(place, offset) for diary in diaries for place, offset, _ in diary.given]
    return len(places) - len(set(places))


def _lines(path: Path) -> Iterator[list[str]]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield line.split()


def _pid(path: Path) -> int:
    """0 of a member that has not begun."""
    first = next(_lines(path), None) if path.exists() else None
    return int(first[1]) if first else 0
