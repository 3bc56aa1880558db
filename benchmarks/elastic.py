"""A broker is added to three that are full of data, and drained again: how evenly the data spreads, how much is copied
for it, how long that takes, and what producers notice.

Three replicas of each partition. The least that can be copied to a broker that was added is its share of all there is;
from one that is drained, what it holds. A producer sends records of 1 KB at an even rate, each a batch of its own, with
acks=all, to all partitions in turn, and waits for none before the next: each is timed from when it was due to its
acknowledgement. Kafka, where its jars are given, does the same with `kafka-reassign-partitions`, whose `--generate`
has a plan for the brokers that it is told of, and runs alone before.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.elastic_sides import ADDED, RATE_BYTES, KafkaSide, OnDelivery, rayka_side
from benchmarks.harness import Bar, Row, quantile
from benchmarks.kafka import running_kafka
from benchmarks.stage import local_ray

UNEVEN_MAX, MOVED_MAX, SLACK_S, P99_MAX = 0.1, 1.1, 10.0, 2.0
SENDS_A_SECOND = 100


class Sending(Protocol):
    """A producer."""

    def send(self, on_delivery: OnDelivery) -> None:
        """One record to the next partition; calls back once it is acknowledged by all replicas, or has failed."""

    def wait(self, wait_s: float) -> None:
        """Lets so much time pass."""

    def flush(self) -> None:
        """Returns when everything that was sent has been called back for."""


class Side(Sending, Protocol):
    """A cluster of three brokers with data, and a fourth one to be."""

    def sizes(self) -> dict[int, int]:
        """The bytes of the topic on each broker, the added one too."""

    def add(self) -> None:
        """The fourth broker is there, and empty."""

    def balance(self) -> int:
        """Returns when nothing moves any more: how many bytes were copied."""

    def drain(self) -> int:
        """Returns when the fourth broker holds nothing: how many bytes were copied."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one act. `uneven`: how far the broker that is farthest from the mean is from it, as a share."""

    moved_bytes: int
    least_bytes: int
    taken_s: float
    uneven: float
    before_s: float
    beside_s: float
    failed_count: int

    @property
    def allowed_s(self) -> float:
        """What the throttle allows, and some."""
        return self.least_bytes / RATE_BYTES + SLACK_S


def run(*, quick: bool = False, kafka_jars: Path | None = None) -> Iterator[Row]:
    size_bytes, before_s = (96 << 20, 3.0) if quick else (3 << 30, 20.0)
    peers: dict[str, Figures] = {}
    with ExitStack() as stack:
        directory = stack.enter_context(local_ray())
        if kafka_jars is not None:
            with running_kafka(kafka_jars, directory / "kafka", brokers=ADDED) as kafka:
                peers = dict(phases(KafkaSide(kafka, size_bytes), before_s))
        side = stack.enter_context(rayka_side(directory, size_bytes))
        for name, figures in phases(side, before_s):
            yield from rows(name, f"{size_bytes / 2**30:.2g} GiB on 3 brokers", figures, peers.get(name))


def phases(side: Side, before_s: float) -> Iterator[tuple[str, Figures]]:
    """The broker comes and gets its share, then it is drained."""
    with paced(side) as sends:
        side.add()
        yield "a broker is added", _measured(side, side.balance, sends, before_s, ADDED)
        yield "it is drained", _measured(side, side.drain, sends, before_s, ADDED - 1)


def _measured(
    side: Side, act: Callable[[], int], sends: "PacedSends", before_s: float, count: int
) -> Figures:
    """The act, after which so many brokers hold all there is."""
    sends.cut()
    time.sleep(before_s)
    before, failed_before = sends.cut()
    held = side.sizes()
    began_s = time.monotonic()
    moved_bytes = act()
    taken_s = time.monotonic() - began_s
    beside, failed_beside = sends.cut()
    left = dict(sorted(side.sizes().items())[:count])
    mean = sum(left.values()) / count
    return Figures(
        moved_bytes=moved_bytes,
        least_bytes=int(mean) if count == ADDED else held[ADDED],
        taken_s=taken_s,
        uneven=max(abs(each - mean) for each in left.values()) / mean,
        before_s=quantile(before, 0.99),
        beside_s=quantile(beside, 0.99),
        failed_count=failed_before + failed_beside,
    )


def rows(name: str, settings: str, figures: Figures, peer: Figures | None) -> Iterator[Row]:
    """What is reported of one act."""
    yield Row.allowed(
        f"{name}: farthest from the mean",
        100 * figures.uneven,
        "%",
        100 * UNEVEN_MAX,
        settings=settings,
        peer=100 * peer.uneven if peer else None,
    )
    yield Row(
        what=f"{name}: copied",
        settings=settings,
        value=figures.moved_bytes,
        unit="B",
        limit=figures.least_bytes,
        limit_what="the least possible",
        share=figures.moved_bytes / figures.least_bytes,
        bar=Bar(MOVED_MAX, at_most=True),
        peer=peer.moved_bytes if peer else None,
    )
    yield Row.allowed(
        f"{name}: until nothing moves",
        figures.taken_s,
        "s",
        figures.allowed_s,
        settings=f"{settings}, {RATE_BYTES / 1e6:g} MB/s a broker",
        peer=peer.taken_s if peer else None,
        note=f"of that {SLACK_S:g} s beside what the throttle needs for the least possible",
    )
    yield Row(
        what=f"{name}: send p99 meanwhile",
        settings=f"1 KB, acks=all, {SENDS_A_SECOND} a second",
        value=figures.beside_s,
        unit="s",
        limit=figures.before_s,
        limit_what="the same just before",
        share=figures.beside_s / figures.before_s,
        bar=Bar(P99_MAX, at_most=True),
        peer=peer.beside_s if peer else None,
        note=f"Kafka's share: {peer.beside_s / peer.before_s:.2f} x" if peer else "",
    )
    yield Row(
        what=f"{name}: failed sends",
        value=figures.failed_count,
        unit="sends",
        share=float(figures.failed_count),
        bar=Bar(0.0, at_most=True),
        peer=peer.failed_count if peer else None,
    )


class PacedSends(threading.Thread):
    """Sends at an even rate, and how long each took from when it was due."""

    def __init__(self, side: Sending) -> None:
        super().__init__(name="sends", daemon=True)
        self._side = side
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        self._taken_s: list[float] = []
        self._failed_count = 0

    def run(self) -> None:
        due_s = time.monotonic()
        while not self._is_stopping.is_set():
            self._side.send(self._on_delivery(due_s))
            due_s += 1 / SENDS_A_SECOND
            self._side.wait(max(0.0, due_s - time.monotonic()))
        self._side.flush()

    def _on_delivery(self, due_s: float) -> OnDelivery:
        def on_delivery(error: object) -> None:
            with self._lock:
                self._taken_s.append(time.monotonic() - due_s)
                self._failed_count += error is not None

        return on_delivery

    def cut(self) -> tuple[list[float], int]:
        """How long each took that ended since the last cut, and how many of them failed; waits for one at least while
        it sends.
        """
        while not self._taken_s and self.is_alive():
            time.sleep(0.001)
        with self._lock:
            found = self._taken_s, self._failed_count
            self._taken_s, self._failed_count = [], 0
        return found

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()


@contextmanager
def paced(side: Sending) -> Iterator[PacedSends]:
    """Sends for the time of the block."""
    sends = PacedSends(side)
    sends.start()
    try:
        yield sends
    finally:
        sends.stop()
