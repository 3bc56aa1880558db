"""Three replicas: what an acknowledgement by all costs, how long writes pause when a leader ends, and what thousands of
partitions cost.

Three brokers, replication factor 3, `min.insync.replicas=2`, acks=all, idempotent. Kafka, where its jars are given,
runs beside it with the same settings, and each of its figures is taken right after ours.
"""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path

import psutil
import pyarrow as pa
import ray

import rayka
from benchmarks import client_rates
from benchmarks.bare_replication import BareReplication
from benchmarks.gaps import Acknowledgements, Seen, Shares, acknowledgements_around, watch
from benchmarks.harness import Bar, Row, amount, in_turn, median_share, quantile
from benchmarks.kafka import Kafka, running_kafka
from benchmarks.limits import NoopActor, payloads, seconds
from benchmarks.stage import local_ray, pid_of, running_cluster
from rayka.actors import node_handles
from rayka.client import io_thread
from rayka.errors import ApiError
from rayka.ports import Network
from rayka.protocol.membership import MetadataPartition, MetadataRequest, MetadataResponse

BROKERS, PARTITIONS, MIN_ISR = 3, 6, 2
MANY_PARTITIONS = 2_000
CPU_MAX_PERCENT, RSS_MAX_BYTES = 5.0, 300e6
GAP_MAX_S, HANDOVER_GAP_MAX_S, ELECTION_MAX_S = 4.0, 0.3, 2.0
SESSION_S = 9.0  # both clusters' default: what may pass before a broker that says nothing is dead
_WAIT_S = 60.0
_GAP_ROUNDS = 3  # each takes a minute with Kafka
_numbers = count()
_Act = Callable[[], object]


def run(*, quick: bool = False, kafka_jars: Path | None = None) -> Iterator[Row]:
    with (
        local_ray() as directory,
        running_cluster(directory, brokers=BROKERS) as cluster,
        ExitStack() as stack,
    ):
        kafka = None
        if kafka_jars is not None:
            kafka = stack.enter_context(running_kafka(kafka_jars, directory / "kafka", brokers=BROKERS))
        noop = NoopActor()
        stack.callback(noop.close)
        yield from _Replication(cluster, noop, kafka, quick=quick).rows()


class _Replication:
    """The rows of one run."""

    def __init__(self, cluster: rayka.Cluster, noop: NoopActor, kafka: Kafka | None, *, quick: bool) -> None:
        self._cluster = cluster
        self._noop = noop
        self._kafka = kafka
        self._rounds = 1 if quick else 5
        self._is_quick = quick
        self._many = 200 if quick else MANY_PARTITIONS

    def rows(self) -> Iterator[Row]:
        yield self._rate(1000, "1 KB", records=20_000, bar=Bar(1.2))
        yield self._rate(100, "100 B", records=100_000, bar=Bar(1.2))
        yield from self._one_by_one()
        yield from self._latency()
        yield self._kill()
        yield self._controlled_stop()
        yield from self._many_partitions()

    def _topic(self, partitions: int) -> str:
        name = f"topic-{next(_numbers)}"
        with rayka.Admin(cluster=self._cluster) as admin:
            admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=BROKERS,
                configs={"min.insync.replicas": str(MIN_ISR)},
            )
        if self._kafka is not None:
            self._kafka.create_topic(name, partitions, replicas=BROKERS, min_isr=MIN_ISR)
        return name

    # ---- Throughput and latency ----

    def _rate(self, size_bytes: int, size: str, *, records: int, bar: Bar) -> Row:
        topic, values = self._topic(PARTITIONS), payloads(10_000, size_bytes)
        repeats = records * (1 if self._is_quick else 5) // len(values)
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        with rayka.Producer(cluster=self._cluster) as producer:

            def send() -> None:
                for _ in range(repeats):
                    producer.send_batch(topic, batch)
                producer.flush()

            def ours() -> float:
                return repeats * batch.num_rows * size_bytes / seconds(send)

            def theirs() -> float:
                assert self._kafka is not None
                return self._kafka.produce_rate(topic, values, repeats, acks="all") * size_bytes

            ours()
            pairs = [(ours(), theirs() if self._kafka else None) for _ in range(self._rounds + 1)]
        value, peer = statistics.median(pair[0] for pair in pairs[1:]), None
        ratios = [mine / other for mine, other in pairs[1:] if other is not None]
        if ratios:
            peer = value / statistics.median(ratios)
        return Row(
            what="send_batch, acks=all, until flush returns",
            settings=f"{size}, {BROKERS} replicas, {PARTITIONS} partitions",
            value=value,
            unit="B/s",
            limit=peer,
            limit_what="Kafka with confluent-kafka's produce, right after",
            share=statistics.median(ratios) if ratios else None,
            bar=bar,
            peer=peer,
        )

    def _one_by_one(self) -> Iterator[Row]:
        """`send` for each record, with keys and without."""
        topic, values = self._topic(PARTITIONS), payloads(10_000, 100)
        load = client_rates.Load(topic, values, 2 if self._is_quick else 20)
        with rayka.Producer(cluster=self._cluster) as producer:
            sides: dict[str, Callable[[], float]] = {
                "plain": partial(client_rates.send_rate, producer, load),
                "keyed": partial(client_rates.keyed_send_rate, producer, load),
            }
            if self._kafka is not None:
                produce = partial(self._kafka.produce_rate, topic, values, load.repeats, acks="all")
                sides |= {"theirs, plain": produce, "theirs, keyed": partial(produce, keys=load.keys)}
            taken = in_turn(sides, rounds=self._rounds)
        for name, what in (("plain", "send() loop until flush returns"), ("keyed", "the same with keys")):
            theirs = taken.get(f"theirs, {name}")
            yield Row(
                what=f"{what}, acks=all",
                settings=f"100 B, {BROKERS} replicas, {PARTITIONS} partitions",
                value=statistics.median(taken[name]),
                unit="records/s",
                limit=theirs and statistics.median(theirs),
                limit_what="Kafka with confluent-kafka's produce, in turn",
                share=theirs and median_share(taken[name], theirs),
                bar=Bar(2),
                peer=theirs and statistics.median(theirs),
            )

    def _latency(self) -> Iterator[Row]:
        """Ours in turn with a no-op actor's and with the bare calls': the machine drifts within seconds."""
        topic, calls = self._topic(1), 20 if self._is_quick else 100
        value = bytes(1000)
        ours: list[list[float]] = []
        bare: list[list[float]] = []
        limits: list[float] = []
        with (
            rayka.Producer(cluster=self._cluster, linger_ms=0) as producer,
            closing(BareReplication()) as calls_alone,
        ):
            for _ in range(2 * self._rounds + 1):
                limits.append(self._noop.round_trip_p50(len(value), calls))
                ours.append(
                    [seconds(lambda: producer.send(topic, value=value).result()) for _ in range(calls)]
                )
                bare.append(calls_alone.round_trips(len(value), calls))
        theirs = self._kafka.round_trips(topic, 1000, len(limits) * calls, acks="all") if self._kafka else []
        measured = list(zip(ours, bare, limits, strict=True))[1:]  # the first warms up
        limit = statistics.median(limits[1:])
        for name, share, bar in (("p50", 0.5, 3.5), ("p99", 0.99, 8.0)):
            mine = quantile([each for taken, _, _ in measured for each in taken], share)
            alone = quantile([each for _, taken, _ in measured for each in taken], share)
            of_rounds = [quantile(taken, share) / its_limit for taken, _, its_limit in measured]
            yield Row(
                what=f"produce acks=all {name}",
                settings=f"1 KB, {BROKERS} replicas, one record in flight",
                value=mine,
                unit="s",
                limit=limit,
                limit_what="round trip p50 of a no-op actor, same bytes",
                share=statistics.median(of_rounds),
                bar=Bar(bar, at_most=True),
                peer=quantile(theirs, share) if theirs else None,
                note=f"the bare calls over Ray, no log, no client: {amount(alone, 's')} = {alone / limit:.3g} x",
            )

    # ---- The end of a leader ----

    def _kill(self) -> Row:
        def kill(node_id: int) -> _Act:
            return partial(os.kill, self._pid(node_id), signal.SIGKILL)

        return self._gap_row("kill -9 of the leader", kill, lambda _: None, signal.SIGKILL, GAP_MAX_S)

    def _controlled_stop(self) -> Row:
        def stop(node_id: int) -> _Act:
            return node_handles.find(self._cluster.name, node_id).stop.remote

        def bring_back(node_id: int) -> None:
            ray.kill(node_handles.find(self._cluster.name, node_id), no_restart=False)

        return self._gap_row(
            "controlled stop of the leader", stop, bring_back, signal.SIGTERM, HANDOVER_GAP_MAX_S
        )

    def _gap_row(
        self,
        what: str,
        end: Callable[[int], _Act],
        bring_back: Callable[[int], None],
        signal_number: signal.Signals,
        max_s: float,
    ) -> Row:
        topic = self._topic(1)
        ours: list[tuple[float, Shares]] = []
        theirs: list[float] = []
        for _ in range(1 if self._is_quick else _GAP_ROUNDS):
            ours.append(self._gap_of_ours(topic, end, bring_back))
            if self._kafka is not None:
                theirs.append(self._gap_of_theirs(topic, signal_number).longest_gap_s)
        gaps = [gap_s for gap_s, _ in ours]
        value = statistics.median_low(gaps)
        shares = ours[gaps.index(value)][1]
        return Row.allowed(
            f"{what}, longest gap between acknowledgements",
            value,
            "s",
            max_s,
            settings=f"500 records/s, {BROKERS} replicas, default timeouts (session {SESSION_S:g} s)",
            peer=statistics.median(theirs) if theirs else None,
            note=f"the gap at the election, in the median run: {shares}; detection ends when the controller has "
            "committed that the broker is fenced or leaves, in one batch with the elections, so election is what it "
            "takes until another broker has applied it, and client the rest, up to the new leader's first "
            f"acknowledgement; all runs: {_listed(gaps)} s; Kafka's: {_listed(theirs) or 'not run'}",
        )

    def _gap_of_ours(
        self, topic: str, end: Callable[[int], _Act], bring_back: Callable[[int], None]
    ) -> tuple[float, Shares]:
        """The longest gap, and the shares of the one at the election. `end` gives what ends a broker."""
        leader_id = self._await_in_sync(topic)
        end_leader = end(leader_id)
        other_id, network = leader_id % BROKERS + 1, self._cluster.network()
        controller_id = _metadata(network, other_id, topic).controller_id
        with rayka.Producer(cluster=self._cluster, linger_ms=0) as producer:

            def send(value: bytes, on_acknowledged: Callable[[], None]) -> None:
                if value:
                    producer.send(
                        topic,
                        value=value,
                        partition=0,
                        on_delivery=lambda error, _: on_acknowledged() if error is None else None,
                    )

            watches: list[Callable[[], Seen]] = []

            def act() -> None:
                end_leader()
                watches.append(watch(lambda: _is_known_to_end(network, controller_id, leader_id)))
                watches.append(watch(lambda: not _led_by(network, other_id, topic, leader_id)))

            acknowledgements = acknowledgements_around(send, act)
        known, led = (each() for each in watches)
        bring_back(leader_id)
        self._await_in_sync(topic)
        return acknowledgements.longest_gap_s, Shares.of(acknowledgements, known, led)

    def _gap_of_theirs(self, topic: str, signal_number: signal.Signals) -> Acknowledgements:
        assert self._kafka is not None
        self._kafka.await_in_sync(topic, BROKERS)
        send, kafka = self._kafka.sender(topic), self._kafka
        found = acknowledgements_around(send, lambda: kafka.end_leader(topic, signal_number))
        kafka.start()
        kafka.await_in_sync(topic, BROKERS)
        return found

    def _await_in_sync(self, topic: str) -> int:
        """The leader of the topic's first partition, once all its replicas are in sync and all nodes run."""
        deadline = time.monotonic() + _WAIT_S
        with rayka.Admin(cluster=self._cluster) as admin:
            while time.monotonic() < deadline:
                partition = admin.describe_topic(topic).partitions[0]
                if len(partition.isr) == BROKERS and partition.leader_id > 0:
                    return partition.leader_id
                time.sleep(0.1)
        raise RuntimeError(f"{topic} has not got all its replicas in sync: {partition}")

    def _pid(self, node_id: int) -> int:
        return pid_of(self._cluster, node_id=node_id)

    # ---- Many partitions ----

    def _many_partitions(self) -> Iterator[Row]:
        topic = self._topic(self._many)
        brokers = [each for each in self._cluster.describe().nodes if "broker" in each.roles]
        processes = [psutil.Process(self._pid(each.node_id)) for each in brokers]
        time.sleep(2 if self._is_quick else 10)  # until what the creation caused is over
        for each in processes:
            each.cpu_percent()
        time.sleep(3 if self._is_quick else 20)
        settings = f"{self._many:,} partitions, {BROKERS} replicas, {BROKERS} brokers, idle"
        cpu, rss = (
            max(each.cpu_percent() for each in processes),
            max(each.memory_info().rss for each in processes),
        )
        for what, value, unit, most in (
            ("CPU of a broker", cpu, "% of a core", CPU_MAX_PERCENT),
            ("RSS of a broker", float(rss), "B", RSS_MAX_BYTES),
        ):
            yield Row.allowed(what, value, unit, most, settings=settings, note="the largest of the three")
        yield self._many_elections(topic)

    def _many_elections(self, topic: str) -> Row:
        """From when the controller knows of the broker's end until every partition has another leader."""
        leader_id = self._await_in_sync(topic)
        other_id, network = leader_id % BROKERS + 1, self._cluster.network()
        before, first = len(_led_by(network, other_id, topic, leader_id)), 0.0
        os.kill(self._pid(leader_id), signal.SIGKILL)
        while left := len(_led_by(network, other_id, topic, leader_id)):
            if left < before and not first:
                first = time.perf_counter()
            time.sleep(0.002)
        value = time.perf_counter() - first if first else 0.0
        return Row.allowed(
            "new leaders for all partitions of a broker",
            value,
            "s",
            ELECTION_MAX_S,
            settings=f"{self._many:,} partitions, {BROKERS} replicas, kill -9",
            note="from the first partition with another leader to the last, as another broker knows it; 0: all at once",
        )


def _metadata(network: Network, asked_id: int, *topics: str) -> MetadataResponse:
    async def ask() -> MetadataResponse:
        return await network.call(asked_id, MetadataRequest(topics), 1_000)

    return io_thread.run(ask, _WAIT_S)


def _is_known_to_end(network: Network, controller_id: int, broker_id: int) -> bool:
    """Whether the controller has committed that the broker is fenced, or is to leave."""
    try:
        brokers = _metadata(network, controller_id).brokers
    except ApiError:
        return False
    return any(
        each.is_fenced or each.is_in_controlled_shutdown for each in brokers if each.node_id == broker_id
    )


def _led_by(network: Network, asked_id: int, topic: str, leader_id: int) -> list[MetadataPartition]:
    """The partitions of the topic that the broker, or no broker, leads, as another broker knows it."""
    try:
        response = _metadata(network, asked_id, topic)
    except ApiError:
        return [MetadataPartition(0, leader_id, 0, (), ())]  # not known: as before
    return [each for each in response.topics[0].partitions if each.leader_id in (leader_id, -1)]


def _listed(figures: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in figures)
