"""Consumer groups and the clients around them, beside Kafka with confluent-kafka, aiokafka and kafka-python.

One controller and one broker, as Kafka has one process; for the coordinator that is killed two coordinators and a
broker beside Kafka's three brokers. All sides run all the time and are measured in turn; those that have no turn are
idle. Both wait 200 ms for the first members of a group (`group.initial.rebalance.delay.ms`). A part that fails takes no
other part with it.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import ray

import rayka
from benchmarks import client_rates, compacted_offsets, group_offsets
from benchmarks.group_gaps import Heartbeats, Pauses, commits_of, longest_gaps, pauses_around
from benchmarks.group_members import (
    MakeMember,
    Member,
    PolledGroup,
    RaykaMember,
    Trickle,
    kafka_sender,
    member_of,
    settle_s,
    until,
)
from benchmarks.harness import Bar, Row, amount, in_turn, median_share
from benchmarks.kafka import Kafka, running_kafka
from benchmarks.limits import append_loop, payloads, record_loop
from benchmarks.stage import cpu_seconds, local_ray, pid_of, running_cluster

PARTITIONS, GROUPS = 6, 100
DELAY = {"group.initial.rebalance.delay.ms": 200}
SESSION_MS = 6_000
SEND, KEYED_SEND = "send() loop until flush returns", "the same with keys"
AWAITED_SEND, AWAITED_LOOP = "aio: await send() until flush returns", "aio: async for over a group's records"
_numbers = count()


def run(*, quick: bool = False, kafka_jars: Path | None = None) -> Iterator[Row]:
    """Rows as they come. What failed is raised after all other parts."""
    failures: list[Exception] = []
    with local_ray() as directory:
        for stage in (_on_one_broker, _on_coordinators):
            yield from _guarded(stage(directory, kafka_jars, quick, failures), failures)
        yield from _guarded(compacted_offsets.rows(directory / "compacted", quick=quick), failures)
    if failures:
        raise ExceptionGroup(f"{len(failures)} parts failed", failures)


def _guarded(rows: Iterator[Row], failures: list[Exception]) -> Iterator[Row]:
    try:
        yield from rows
    except Exception as error:
        failures.append(error)


def _on_one_broker(
    directory: Path, kafka_jars: Path | None, quick: bool, failures: list[Exception]
) -> Iterator[Row]:
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(directory, config=DELAY))
        kafka = None
        if kafka_jars is not None:
            kafka = stack.enter_context(running_kafka(kafka_jars, directory / "kafka", properties=DELAY))
        yield from _OneBroker(cluster, kafka, quick=quick).rows(failures)


def _on_coordinators(
    directory: Path, kafka_jars: Path | None, quick: bool, failures: list[Exception]
) -> Iterator[Row]:
    """Three nodes may lead groups on either side."""
    replicated = {**DELAY, "offsets.topic.replication.factor": 3}
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(directory, coordinators=2, config=replicated))
        kafka = None
        if kafka_jars is not None:
            more = {**replicated, "offsets.topic.num.partitions": 3}
            kafka = stack.enter_context(
                running_kafka(kafka_jars, directory / "kafka-3", brokers=3, properties=more)
            )
        yield from _killed_coordinator(cluster, kafka, quick=quick)


class _OneBroker:
    """The rows of one broker."""

    def __init__(self, cluster: rayka.Cluster, kafka: Kafka | None, *, quick: bool) -> None:
        self._cluster = cluster
        self._kafka = kafka
        self._rounds = 1 if quick else 5
        self._scale = 1 if quick else 10
        self._is_quick = quick

    def rows(self, failures: list[Exception]) -> Iterator[Row]:
        for part in (
            self._sending,
            self._reading,
            self._auto_commit,
            self._commits,
            self._many_clients,
            self._killed_member,
            self._settling,
            self._loading,
        ):
            yield from _guarded(part(), failures)

    def _topic(self, partitions: int = PARTITIONS) -> str:
        """On both sides."""
        name = f"groups-{next(_numbers)}"
        with rayka.Admin(cluster=self._cluster) as admin:
            admin.create_topic(name, partitions=partitions)
        if self._kafka is not None:
            self._kafka.create_topic(name, partitions)
        return name

    # ---- Records -----------------------------------------------------------------------------------------------------

    def _sending(self) -> Iterator[Row]:
        load = client_rates.Load(self._topic(), payloads(10_000, 100), 2 * self._scale)
        with rayka.Producer(cluster=self._cluster, acks=1) as producer:
            taken: dict[str, list[float]] = in_turn(
                {
                    "limit": partial(append_loop, load.values, load.repeats),
                    "plain": partial(client_rates.send_rate, producer, load),
                    "aio": partial(client_rates.aio_send_rate, self._cluster, load),
                    "keyed": partial(client_rates.keyed_send_rate, producer, load),
                    **self._kafka_senders(load),
                },
                rounds=self._rounds,
            )
        settings = "100 B, acks=1, 6 partitions"
        peers = _said(taken, "kafka-python", "aiokafka")
        bar, limit = Bar(1.2), "a loop that appends to a list and returns a two-slot handle"
        peer = _beside(taken, "plain", "confluent", bar, note=peers)
        yield _against(taken, "plain", "limit", SEND, settings, limit, **peer)
        keyed_peer = _beside(taken, "keyed", "confluent, keyed", bar)
        yield _against(taken, "keyed", "limit", KEYED_SEND, settings, limit, **keyed_peer)
        sync = "the sync producer's loop"
        aio_peer = _beside(taken, "aio", "aiokafka")
        yield _against(taken, "aio", "plain", AWAITED_SEND, settings, sync, bar=Bar(1 / 1.2), **aio_peer)

    def _kafka_senders(self, load: client_rates.Load) -> dict[str, Callable[[], float]]:
        if self._kafka is None:
            return {}
        kafka, address, topic = self._kafka, self._kafka.address, load.topic
        produce = partial(kafka.produce_rate, topic, load.values, load.repeats)
        return {
            "confluent": produce,
            "confluent, keyed": partial(produce, keys=load.keys),
            "kafka-python": partial(client_rates.kafka_python_send_rate, address, load),
            "aiokafka": partial(client_rates.aiokafka_send_rate, address, load),
        }

    def _reading(self) -> Iterator[Row]:
        topic, records = self._filled(30 * self._scale)
        values = payloads(10_000, 100)
        ours = (client_rates.iterate_rate, client_rates.poll_arrow_rate)
        iterate, arrow = (partial(each, self._cluster, topic, records) for each in ours)
        taken: dict[str, list[float]] = in_turn(
            {
                "limit": partial(record_loop, values, 3 * self._scale),
                "iterate": iterate,
                "arrow": arrow,
                "counted": partial(client_rates.counted_rate, self._cluster, topic, records),
                "aio": partial(client_rates.aio_iterate_rate, self._cluster, topic, records),
                **self._kafka_readers(topic, records),
            },
            rounds=self._rounds,
        )
        settings, limit = "100 B, 6 partitions", "a loop that builds one slotted object per record"
        peer = _beside(taken, "iterate", "confluent", Bar(4), note=_said(taken, "kafka-python", "aiokafka"))
        yield _against(taken, "iterate", "limit", "iterate a group's records", settings, limit, **peer)
        arrow_peer = _beside(taken, "arrow", "confluent", Bar(20))
        yield _against(
            taken, "arrow", "limit", "poll_arrow of a group's records", settings, limit, **arrow_peer
        )
        sync, aio_peer = "the sync consumer's loop", _beside(taken, "aio", "aiokafka")
        yield _against(taken, "aio", "counted", AWAITED_LOOP, settings, sync, bar=Bar(1 / 1.2), **aio_peer)

    def _filled(self, batches: int) -> tuple[str, int]:
        """A topic of 100-byte records on both sides, and how many each holds."""
        topic, values = self._topic(), payloads(10_000, 100)
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        with rayka.Producer(cluster=self._cluster, acks=1) as producer:
            for _ in range(batches):
                producer.send_batch(topic, batch)
        if self._kafka is not None:
            self._kafka.produce_rate(topic, values, batches)
        return topic, batches * len(values)

    def _kafka_readers(self, topic: str, records: int) -> dict[str, Callable[[], float]]:
        if self._kafka is None:
            return {}
        address, few = self._kafka.address, min(records, 30_000)
        return {
            "confluent": partial(client_rates.confluent_consume_rate, address, topic, records),
            "kafka-python": partial(client_rates.kafka_python_iterate_rate, address, topic, few),
            "aiokafka": partial(client_rates.aiokafka_iterate_rate, address, topic, few),
        }

    def _auto_commit(self) -> Iterator[Row]:
        """Fifty times as often as by default, so that a short run has some."""
        topic, records = self._filled(60 * self._scale)
        rate = partial(client_rates.iterate_rate, self._cluster, topic, records)
        often = partial(rate, enable_auto_commit=True, auto_commit_interval_ms=100)
        taken = in_turn({"off": rate, "on": often}, rounds=self._rounds)
        what, settings = "iterate a group's records, auto commit", "100 B, committed every 100 ms"
        note = "the default is every 5 s"
        yield _against(taken, "on", "off", what, settings, "without auto commit", bar=Bar(0.98), note=note)

    # ---- Offsets -----------------------------------------------------------------------------------------------------

    def _commits(self) -> Iterator[Row]:
        topic, commits = self._topic(), 2_000 * self._scale
        with ExitStack() as stack:
            ours = stack.enter_context(group_offsets.RaykaGroups(self._cluster, topic, GROUPS))
            measures = {"ours": partial(ours.rate, commits)}
            if self._kafka is not None:
                theirs = group_offsets.ConfluentGroups(self._kafka.address, topic, GROUPS)
                measures["confluent"] = partial(stack.enter_context(theirs).rate, commits)
            taken = in_turn(measures, rounds=self._rounds)
            processes = {"client": os.getpid(), "coordinator": pid_of(self._cluster)}
            spent = cpu_seconds(measures["ours"], processes)
        each = ", ".join(f"{name} {amount(s / commits, 's')}" for name, s in spent.items())
        yield Row(
            what="commits of 100 groups at one coordinator",
            settings="one partition each, commit_async",
            value=statistics.median(taken["ours"]),
            unit="commits/s",
            limit=10_000,
            limit_what="what is asked for",
            share=statistics.median(taken["ours"]) / 10_000,
            bar=Bar(1.0),
            note=f"CPU a commit: {each}",
            **_beside(taken, "ours", "confluent"),
        )

    def _loading(self) -> Iterator[Row]:
        """A broker that was killed comes back; with another node in sync nothing would have to be loaded."""
        groups, partitions = (20, 500) if self._is_quick else (500, 2_000)
        group_offsets.rayka_fill(self._cluster, groups=groups, partitions=partitions)
        os.kill(pid_of(self._cluster), signal.SIGKILL)
        ours = group_offsets.rayka_loaded_s(self._cluster, groups=groups)
        peer = None
        if self._kafka is not None:
            topic = self._topic(partitions)
            group_offsets.kafka_fill(self._kafka.address, topic, groups=groups, partitions=partitions)
            began = time.perf_counter()
            self._kafka.end_node(1, signal.SIGKILL)
            self._kafka.start()
            group_offsets.kafka_loaded_s(self._kafka.address, topic, groups=groups)
            peer = time.perf_counter() - began
        settings = f"{groups * partitions:,} offsets of {groups} groups, one broker"
        what = "kill -9 of the broker until all groups' offsets are answered"
        yield Row.allowed(what, ours, "s", 10.0, settings=settings, peer=peer, note="the restart included")

    # ---- Members -----------------------------------------------------------------------------------------------------

    def _many_clients(self) -> Iterator[Row]:
        clients = 10 if self._is_quick else 100
        topic = self._topic()
        one, many = self._footprint("rayka", topic, clients)
        peer = None if self._kafka is None else self._footprint("kafka", topic, clients)
        settings = f"{clients} producers and {clients} consumers in groups, one process"
        yield Row.allowed(
            "memory beyond one of each",
            many["rss"] - one["rss"],
            "B",
            200e6,
            settings=settings,
            peer=None if peer is None else peer[1]["rss"] - peer[0]["rss"],
        )
        yield Row(
            what="threads beyond one of each",
            settings=settings,
            value=many["threads"] - one["threads"],
            unit="threads",
            peer=None if peer is None else peer[1]["threads"] - peer[0]["threads"],
            note="one IO thread for all" if many["threads"] == one["threads"] else "",
        )

    def _footprint(self, kind: str, topic: str, clients: int) -> list[dict[str, int]]:
        options = {"count": clients, "member": {"auto.offset.reset": "earliest"}}
        process = self._process("footprint", kind, topic, options)
        try:
            printed, _ = process.communicate(timeout=300)
        finally:
            process.kill()
        found: list[dict[str, int]] = json.loads(printed.splitlines()[-1])
        return found

    def _process(
        self, what: str, kind: str, topic: str, options: dict[str, Any]
    ) -> "subprocess.Popen[bytes]":
        is_kafka = kind == "kafka" and self._kafka is not None
        address = self._kafka.address if is_kafka and self._kafka else ray.get_runtime_context().gcs_address
        command = [sys.executable, "-m", "benchmarks.group_members", what, kind, address]
        arguments = [self._cluster.name, topic, json.dumps(options)]
        return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _members(self, kind: str, topic: str) -> MakeMember:
        address = self._kafka.address if kind == "kafka" and self._kafka else ""
        if kind == "kafka":
            return member_of(kind, address, "", topic)
        return lambda options: RaykaMember(self._cluster, topic, options)

    def _settling(self) -> Iterator[Row]:
        sizes = ((3, 6, 2.0),) if self._is_quick else ((20, 100, 2.0), (200, 2_000, 10.0))
        for members, partitions, most_s in sizes:
            topic = self._topic(partitions)
            rounds = 1 if members > 20 or self._is_quick else 3
            taken = {
                kind: [
                    settle_s(self._members(kind, topic), _settle_options(kind, number), members, partitions)
                    for number in range(rounds)
                ]
                for kind in self._kinds
            }
            settings = f"{members} members, {partitions:,} partitions, delay of 200 ms included"
            peer = {"peer": statistics.median(taken["kafka"])} if "kafka" in taken else {}
            ours = statistics.median(taken["rayka"])
            yield Row.allowed("last join until all is shared", ours, "s", most_s, settings=settings, **peer)

    @property
    def _kinds(self) -> tuple[str, ...]:
        return ("rayka",) if self._kafka is None else ("rayka", "kafka")

    def _killed_member(self) -> Iterator[Row]:
        topic = self._topic()
        taken = {kind: self._pauses(kind, topic) for kind in self._kinds}
        ours, theirs = taken["rayka"], taken.get("kafka")
        settings = f"3 members, cooperative, session {SESSION_MS // 1000} s"
        most_s = SESSION_MS / 1000 + 1
        yield Row.allowed(
            "kill -9 of a member, pause of its partitions",
            ours.killed_s,
            "s",
            most_s,
            settings=settings,
            peer=theirs and theirs.killed_s,
        )
        yield Row.allowed(
            "kill -9 of a member, longest pause of the others'",
            ours.others_s,
            "s",
            0.5,
            settings=settings,
            peer=theirs and theirs.others_s,
        )

    def _pauses(self, kind: str, topic: str) -> Pauses:
        options = {
            "group.id": f"killed-{next(_numbers)}",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 1_000,
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "latest",
        }
        with PolledGroup(self._members(kind, topic), options, 2, poll_s=0.1) as group, ExitStack() as stack:
            group.join()
            process = self._process("member", kind, topic, options)
            stack.callback(process.wait)
            stack.callback(process.kill)
            until(lambda: group.shares(PARTITIONS, others=2), "the member in another process has its share")
            stack.enter_context(self._trickle(kind, topic))
            mine = set().union(*(each.mine for each in group.polls))
            victims = set(range(PARTITIONS)) - mine
            return pauses_around(group, PARTITIONS, victims, process.kill, after_s=2.0)

    def _trickle(self, kind: str, topic: str) -> "Trickle":
        if kind == "kafka" and self._kafka is not None:
            return Trickle(*kafka_sender(self._kafka.address, topic), PARTITIONS)
        producer = rayka.Producer(cluster=self._cluster, linger_ms=0)
        return Trickle(
            lambda partition: producer.send(topic, b"x", partition=partition), producer.close, PARTITIONS
        )


def _settle_options(kind: str, number: int) -> dict[str, Any]:
    return {"group.id": f"settle-{kind}-{next(_numbers)}-{number}", "auto.offset.reset": "latest"}


# ---- A coordinator that is killed ------------------------------------------------------------------------------------


def _killed_coordinator(cluster: rayka.Cluster, kafka: Kafka | None, *, quick: bool) -> Iterator[Row]:
    seconds_long = 4.0 if quick else 8.0
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("commits", partitions=2, replication_factor=1)

    def kill(group_id: str) -> None:
        with rayka.Admin(cluster=cluster) as admin:
            coordinator_id = admin.describe_group(group_id).coordinator_id
        os.kill(pid_of(cluster, node_id=coordinator_id), signal.SIGKILL)

    def beats_of(member: Member) -> Callable[[], object]:
        assert isinstance(member, RaykaMember)
        return Heartbeats(cluster.network(), member.metadata)

    make = partial(RaykaMember, cluster, "commits")
    ours = _costs_of_a_coordinator(make, kill, seconds_long, (commits_of, beats_of))
    theirs = None
    if kafka is not None:
        kafka.create_topic("commits", 2, replicas=3)
        make_theirs = member_of("kafka", kafka.address, "", "commits")
        theirs = _costs_of_a_coordinator(make_theirs, partial(_kill_kafka, kafka), 25.0, (commits_of,))
    what, settings = "kill -9 of the coordinator, ", "2 members, each commits every 10 ms"
    yield Row.allowed(
        what + "longest time between two commits",
        ours.gaps_s[0],
        "s",
        1.0,
        settings=settings,
        peer=theirs and theirs.gaps_s[0],
    )
    yield Row.allowed(
        what + "longest time between two heartbeats",
        ours.gaps_s[1],
        "s",
        1.0,
        settings="2 members, a heartbeat of each every 10 ms beside the commits",
    )
    yield Row(
        what=what + "rebalances",
        value=ours.rebalances,
        unit="",
        settings=settings,
        limit=1,
        limit_what="one rebalance",
        share=ours.rebalances,
        bar=Bar(0, at_most=True),
        peer=theirs and theirs.rebalances,
    )


class _Costs(NamedTuple):
    """The longest time between two successes of each kind of call, and how many rebalances there were."""

    gaps_s: list[float]
    rebalances: int


def _costs_of_a_coordinator(
    make: MakeMember,
    kill: Callable[[str], None],
    seconds_long: float,
    kinds: Sequence[Callable[[Member], Callable[[], object]]],
) -> _Costs:
    """All members make calls of all kinds while their coordinator is killed."""
    group_id = f"gap-{next(_numbers)}"
    with PolledGroup(make, {"group.id": group_id, "auto.offset.reset": "latest"}, 2) as group:
        group.join()
        until(lambda: group.shares(2), "two members share two partitions")
        for each in group.polls:
            each.pause()
        members = [each.member for each in group.polls]
        before = sum(each.rebalances for each in members)
        calls = [call_of(member) for call_of in kinds for member in members]
        gaps_s = longest_gaps(calls, lambda: kill(group_id), seconds_long)
        longest = [max(gaps_s[begin : begin + len(members)]) for begin in range(0, len(calls), len(members))]
        return _Costs(longest, sum(each.rebalances for each in members) - before)


def _kill_kafka(kafka: Kafka, group_id: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.address})
    described = admin.describe_consumer_groups([group_id])[group_id].result(30)
    kafka.end_node(described.coordinator.id, signal.SIGKILL)


# ---- Rows ------------------------------------------------------------------------------------------------------------


def _against(
    taken: dict[str, list[float]],
    ours: str,
    limit: str,
    what: str,
    settings: str,
    limit_what: str,
    **more: Any,
) -> Row:
    """What one reached beside another, round for round."""
    return Row(
        what=what,
        settings=settings,
        unit="records/s",
        value=statistics.median(taken[ours]),
        limit=statistics.median(taken[limit]),
        limit_what=limit_what,
        share=median_share(taken[ours], taken[limit]),
        **more,
    )


def _beside(
    taken: dict[str, list[float]], ours: str, theirs: str, bar: Bar | None = None, *, note: str = ""
) -> dict[str, Any]:
    """The fields of a row with a peer; with the bar also where none ran, as what would have to be reached."""
    fields: dict[str, Any] = {"ratio_bar": bar} if bar is not None else {}
    if theirs in taken:
        ratio = median_share(taken[ours], taken[theirs])
        fields |= {"peer": statistics.median(taken[ours]) / ratio} | ({"note": note} if note else {})
    return fields


def _said(taken: dict[str, list[float]], *names: str) -> str:
    figures = {name: statistics.median(taken[name]) for name in names if name in taken}
    return ", ".join(f"{name}: {amount(rate, 'records/s')}" for name, rate in figures.items())
