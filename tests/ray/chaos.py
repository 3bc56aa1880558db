"""Kills nodes of all roles, whole Ray nodes and a group's members at random while clients run; looks what is left.

    python -m tests.ray.chaos --minutes 10 --seed 7 --transport ray

Eight nodes of a cluster (three brokers, three controllers, two coordinators) live on three Ray nodes, with three
replicas of everything and Kafka's timeouts. With the transport `auto`, direct lanes are cut off at brokers and under
clients, too. In the end every acknowledged record must be read exactly at its offset, none twice, those of a key in
their order, and nothing that a consumer read meanwhile may have changed. A group reads it all, too: every acknowledged
record must have been given to it, no committed offset may have gone back, and it must settle. Exit code 1 when
something is wrong.
"""

import argparse
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import get_args

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray

import rayka
from rayka.actors.names import actor_name
from rayka.cluster import Cluster
from rayka.coordinator.group_shard import OFFSETS_TOPIC
from rayka.ids import Role
from rayka.options import Transport
from tests.ray.chaos_group import Diary, Group, OffsetWatch, given_twice, wrong_in
from tests.ray.lane_sockets import SERVED, cut_at_node, cut_one
from tests.ray.machines import ON_MACHINES, Machines, homes
from tests.ray.sender import Sender
from tests.ray.support import kill
from tests.rays import connected_ray

MACHINES = 3
COORDINATORS = 2
NODES = 2 * MACHINES + COORDINATORS
PARTITIONS = 6
TOPICS = ("first", "second")  # a producer for each
_PAUSE_MS = 4.0  # of a producer between two records
_HEAL_S = 180
_WEIGHTS = {"broker": 5, "controller": 3, "coordinator": 4, "machine": 2, "member": 4}
_ROLES = {"broker": Role.BROKER, "controller": Role.CONTROLLER, "coordinator": Role.COORDINATOR}
_CUT = "lanes"  # a kind of fault where there are any
_CUT_WEIGHT, _CUTS = 4, 8


class Reader(threading.Thread):
    """Reads a topic from its beginning for ever; keeps what it read, and notices when an offset goes back."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(name=f"reader of {topic}")
        self._cluster = cluster
        self._topic = topic
        self._is_stopping = False
        self.read: dict[tuple[int, int], bytes | None] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        newest: dict[int, int] = {}
        with rayka.Consumer(self._topic, cluster=self._cluster, auto_offset_reset="earliest") as consumer:
            while not self._is_stopping:
                for record in consumer.poll(timeout_ms=200):
                    if record.offset <= newest.get(record.partition, -1):
                        self.problems.append(f"{record} after offset {newest[record.partition]}")
                    newest[record.partition] = record.offset
                    self.read[record.partition, record.offset] = record.value

    def stop(self) -> None:
        self._is_stopping = True
        self.join(60)
        assert not self.is_alive()


@dataclass
class Outcome:
    """What happened. A gap is the longest time without an acknowledgement between a fault and the next one: of a record
    to a producer, or of a commit to some member of the group.
    """

    faults: list[tuple[str, float]] = field(default_factory=list)
    gaps_s: dict[str, list[float]] = field(default_factory=dict)
    commit_gaps_s: dict[str, list[float]] = field(default_factory=dict)
    acknowledged: int = 0
    failed: int = 0
    read_meanwhile: int = 0
    group: str = ""  # its figures
    problems: list[str] = field(default_factory=list)


class Chaos:
    """One run on a cluster that is up."""

    def __init__(
        self,
        cluster: Cluster,
        machines: Machines,
        group: Group,
        random: Random,
        say: Callable[[str], None],
        *,
        has_lanes: bool,
    ) -> None:
        self.cluster = cluster
        self._machines = machines
        self.group = group
        self._random = random
        self._say = say
        self._weights = _WEIGHTS | ({_CUT: _CUT_WEIGHT} if has_lanes else {})
        self._return_at: float | None = None
        self._began = time.monotonic()
        self.outcome = Outcome()

    def run(self, seconds: float) -> None:
        """Faults for so long, one machine at a time; returns when everything is whole again."""
        until = time.monotonic() + seconds
        kinds = self._kinds()
        while time.monotonic() < until:
            self._fault(next(kinds))
            is_first_round = len(self.outcome.faults) < len(self._weights)
            pause_s = self._random.uniform(3, 8 if is_first_round else 12)
            pause_until = min(until, time.monotonic() + pause_s)
            while time.monotonic() < pause_until:
                self._maybe_return()
                self.group.tick()
                time.sleep(0.2)
        self._return_at = self._return_at and time.monotonic()
        self._maybe_return()
        self._await_whole()

    def _kinds(self) -> Iterator[str]:
        """Each kind once in the beginning, so that a short run has all of them."""
        first = list(self._weights)
        self._random.shuffle(first)
        yield from first
        while True:
            yield self._random.choices(list(self._weights), list(self._weights.values()))[0]

    def _fault(self, kind: str) -> None:
        if kind == "machine" and self._return_at is None:
            inhabited = set(homes(self.cluster).values())
            ray_node_id = self._random.choice(
                [each for each in self._machines.ray_node_ids if each in inhabited]
            )
            lost = self._machines.lose(self.cluster, ray_node_id)
            self._return_at = time.monotonic() + self._random.uniform(5, 25)
            self._note("machine", f"Ray node {ray_node_id[:6]} with nodes {lost}")
            return
        if kind == _CUT:
            self._cut_lanes()
            return
        if kind == "member":
            if done := self.group.end_one():
                self._note("member", done)
            return
        role = _ROLES.get(kind, Role.BROKER)
        nodes = [each for each in self.cluster.describe().nodes if role in each.roles and each.pid]
        if nodes:
            chosen = self._random.choice(nodes)
            try:
                kill(chosen.pid)
            except ProcessLookupError:
                return
            self._note(role.value, f"process {chosen.pid} of {chosen.actor_name}")

    def _cut_lanes(self) -> None:
        """Of a broker, and of the clients of this process."""
        brokers = [each.node_id for each in self.cluster.describe().nodes if Role.BROKER in each.roles]
        node_id = self._random.choice(brokers)
        count = sum(cut_one(socket.socket.getpeername, self._random, (SERVED,)) for _ in range(_CUTS))
        try:
            there = sum(
                cut_at_node(self.cluster, node_id, self._random.getrandbits(32)) for _ in range(_CUTS)
            )
        except (ray.exceptions.RayError, ValueError):
            there = 0  # it is down just now
        self._note(_CUT, f"{count} of clients, {there} at {actor_name(self.cluster.name, node_id)}")

    def _note(self, kind: str, text: str) -> None:
        self.outcome.faults.append((kind, time.monotonic()))
        self._say(f"{time.monotonic() - self._began:6.1f} s  {kind:10} {text}")

    def _maybe_return(self) -> None:
        if self._return_at is not None and time.monotonic() >= self._return_at:
            self._return_at = None
            self._say(
                f"{time.monotonic() - self._began:6.1f} s  came back as Ray node {self._machines.bring_back()[:6]}"
            )

    def _await_whole(self) -> None:
        """Until every node runs, each on a machine that lives, and every replica is in sync."""
        deadline = time.monotonic() + _HEAL_S
        with rayka.Admin(cluster=self.cluster) as admin:
            while True:
                self.group.tick()
                description = self.cluster.describe()
                is_up = description.is_running and len(description.nodes) == NODES
                if is_up and all(
                    len(each.isr) == MACHINES
                    for name in (*TOPICS, OFFSETS_TOPIC)
                    for each in admin.describe_topic(name).partitions
                ):
                    break
                if time.monotonic() > deadline:
                    states = {each.node_id: f"{each.state} {each.detail}" for each in description.nodes}
                    self.outcome.problems.append(f"not whole after {_HEAL_S} s: {states}")
                    return
                time.sleep(0.5)
        astray = set(homes(self.cluster).values()) - set(self._machines.ray_node_ids)
        if astray:
            self.outcome.problems.append(f"nodes live on Ray nodes that are gone: {astray}")


def run(
    seconds: float,
    seed: int,
    say: Callable[[str], None] = print,
    *,
    transport: Transport = "auto",
    pause_ms: float = _PAUSE_MS,
) -> Outcome:
    """A cluster, its clients, and faults for so many seconds; leaves nothing running."""
    data_dir = tempfile.mkdtemp(prefix="chaos-")
    try:
        with connected_ray(head_cpus=0) as rays:
            chaos = _begin(Machines(rays, MACHINES), Path(data_dir), seed, say, transport)
            outcome = _run_clients(chaos, seconds, pause_ms / 1000)
            chaos.cluster.stop()
            return outcome
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)  # what was killed may still write there


def _begin(
    machines: Machines, data_dir: Path, seed: int, say: Callable[[str], None], transport: Transport
) -> Chaos:
    """On a cluster that is up, with the topics."""
    cluster = Cluster.start(
        name="chaos",
        brokers=MACHINES,
        controllers=MACHINES,
        coordinators=COORDINATORS,
        resources=ON_MACHINES,
        data_dir=str(data_dir),
        transport=transport,
        config={
            "default.replication.factor": MACHINES,
            "min.insync.replicas": 2,
            "group.initial.rebalance.delay.ms": 0,
        },
    )
    say(f"seed {seed}: nodes on Ray nodes { ({each: home[:6] for each, home in homes(cluster).items()}) }")
    with rayka.Admin(cluster=cluster) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, partitions=PARTITIONS)
    random = Random(seed)
    group = Group(cluster, TOPICS, data_dir / "members", random)
    return Chaos(cluster, machines, group, random, say, has_lanes=transport == "auto")


def _run_clients(chaos: Chaos, seconds: float, pause_s: float) -> Outcome:
    cluster = chaos.cluster
    senders = [Sender(cluster, topic, pause_s=pause_s) for topic in TOPICS]
    readers = [Reader(cluster, topic) for topic in TOPICS]
    watch = OffsetWatch(cluster)
    for each in (*senders, *readers, watch):
        each.start()
    outcome, settled_s = chaos.outcome, 0.0
    try:
        for each in senders:
            each.await_acknowledged(100)
        chaos.group.await_members()
        chaos.run(seconds)
        for each in senders:
            each.await_acknowledged(100)
            each.stop()
        settled_s = chaos.group.settle()
        chaos.group.stop()
    finally:
        for each in (*senders, *readers, watch):
            each.stop()
    outcome.acknowledged = sum(len(each.acknowledged) for each in senders)
    outcome.failed = sum(len(each.failed) for each in senders)
    outcome.read_meanwhile = sum(len(each.read) for each in readers)
    for sender, reader in zip(senders, readers, strict=True):
        _check(outcome, sender, reader)
    _check_group(outcome, chaos.group, senders, watch, settled_s)
    _measure_gaps(outcome, senders, chaos.group.diaries())
    return outcome


def _check(outcome: Outcome, sender: Sender, reader: Reader) -> None:
    outcome.problems += reader.problems
    try:
        records = sender.check()
    except AssertionError as error:
        outcome.problems.append(f"{sender.topic}: {error}")
        return
    now = {(each.partition, each.offset): each.value for each in records}
    changed = [place for place, value in reader.read.items() if now.get(place) != value]
    if changed:
        outcome.problems.append(f"{sender.topic}: what was read is no longer there: {changed[:5]}")


def _check_group(
    outcome: Outcome, group: Group, senders: list[Sender], watch: OffsetWatch, settled_s: float
) -> None:
    diaries = group.diaries()
    outcome.problems += group.problems + watch.problems + wrong_in(diaries, senders)
    given = sum(len(each.given) for each in diaries)
    commits = sum(len(each.commit_times) for each in diaries)
    refusals = Counter(error for each in diaries for error in each.refusals)
    outcome.group = (
        f"group: {group.started} members in all, given {given:,}, {given_twice(diaries):,} of them again, "
        f"{commits:,} commits, refused {dict(refusals)}, "
        f"offsets looked at {watch.looks} times, settled {settled_s:.1f} s after the last record"
    )


def _measure_gaps(outcome: Outcome, senders: list[Sender], diaries: list[Diary]) -> None:
    ends = [at for _, at in outcome.faults[1:]] + [time.monotonic()]
    commits = sorted(at for each in diaries for at in each.commit_times)
    for number, ((kind, at), end) in enumerate(zip(outcome.faults, ends, strict=True), 1):
        for sender in senders:
            outcome.gaps_s.setdefault(kind, []).append(sender.longest_gap_s(at, end))
        times = [at, *(each for each in commits if at <= each <= end)]
        if number < len(ends):  # after the last one the group ends
            times.append(end)
        gap_s = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
        outcome.commit_gaps_s.setdefault(kind, []).append(gap_s)


def table(outcome: Outcome, seconds: float) -> str:
    """What a person reads."""
    counts = Counter(kind for kind, _ in outcome.faults)
    lines = [
        f"| killed or cut off in {seconds / 60:g} min | times | longest pause of writing, median | worst "
        "| of the group's commits, median | worst |",
        "|---|---|---|---|---|---|",
    ]
    for kind in (*_WEIGHTS, _CUT):
        cells = [_median_and_worst(gaps.get(kind)) for gaps in (outcome.gaps_s, outcome.commit_gaps_s)]
        lines.append(f"| {kind} | {counts[kind]} | {' | '.join(cells)} |")
    lines += [
        "",
        f"acknowledged {outcome.acknowledged:,}, failed {outcome.failed}, read meanwhile {outcome.read_meanwhile:,}",
        outcome.group,
        *(f"WRONG: {each}" for each in outcome.problems),
        "Every acknowledged record is where it was acknowledged, once, in order, and was given to the group."
        if not outcome.problems
        else "",
    ]
    return "\n".join(lines)


def _median_and_worst(gaps_s: list[float] | None) -> str:
    ordered = sorted(gaps_s or [0.0])
    return f"{ordered[len(ordered) // 2]:.2f} s | {ordered[-1]:.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--transport", choices=get_args(Transport), default="auto")
    parser.add_argument("--pause-ms", type=float, default=_PAUSE_MS, help="between two records of a producer")
    arguments = parser.parse_args()
    seed = Random().getrandbits(32) if arguments.seed is None else arguments.seed
    outcome = run(
        arguments.minutes * 60,
        seed,
        lambda text: print(text, flush=True),
        transport=arguments.transport,
        pause_ms=arguments.pause_ms,
    )
    print(table(outcome, arguments.minutes * 60))
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
