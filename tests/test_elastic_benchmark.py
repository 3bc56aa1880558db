"""The benchmark of brokers that come and go: its figures, and the part that an in-process cluster can play."""

import time

import pytest

import rayka.testing
from benchmarks.elastic import Figures, paced, phases, rows
from benchmarks.elastic_sides import FACTOR, PARTITIONS, OnDelivery, RaykaSide, added, copied_bytes

CONFIG = {"broker.heartbeat.interval.ms": 20, "broker.load.report.interval.ms": 40, "balancer.enable": False}
SIZE_BYTES = FACTOR * PARTITIONS * 500_000


def test_a_broker_gets_its_share_and_gives_it_back() -> None:
    with (
        rayka.testing.cluster(brokers=4, config=CONFIG) as cluster,
        RaykaSide(cluster, SIZE_BYTES, lambda: None) as side,
    ):
        found = dict(phases(side, 0.3))
    for figures in found.values():
        assert figures.uneven <= 0.1
        assert 0.85 <= figures.moved_bytes / figures.least_bytes <= 1.1
        assert figures.taken_s > 0
        assert min(figures.before_s, figures.beside_s) > 0
        assert figures.failed_count == 0
    assert list(found) == ["a broker is added", "it is drained"]


def test_rows_are_held_against_their_bars() -> None:
    good = Figures(
        moved_bytes=110, least_bytes=100, taken_s=9, uneven=0.1, before_s=1, beside_s=2, failed_count=0
    )
    bad = Figures(
        moved_bytes=120, least_bytes=100, taken_s=11, uneven=0.11, before_s=1, beside_s=2.1, failed_count=1
    )
    assert [each.is_met for each in rows("a", "b", good, None)] == [True] * 5
    assert [each.is_met for each in rows("a", "b", bad, None)] == [False] * 5
    assert [each.peer for each in rows("a", "b", good, bad)] == [pytest.approx(11), 120, 11, 2.1, 1]


def test_what_is_copied_is_counted_for_each_replica_that_was_added() -> None:
    before, after = {0: [1, 2], 1: [2, 3], 2: [3, 1]}, {0: [4, 2], 1: [3, 2], 2: [4, 5]}
    assert added(before, after) == {(0, 4), (2, 4), (2, 5)}
    assert copied_bytes(added(before, after), {0: 10, 1: 100, 2: 1000}) == 2010


class Slow:
    """A producer whose first record is acknowledged late, and whose third one fails."""

    def __init__(self) -> None:
        self.sent = list[OnDelivery]()

    def send(self, on_delivery: OnDelivery) -> None:
        self.sent.append(on_delivery)
        if len(self.sent) == 2:
            on_delivery(None)
        if len(self.sent) == 3:
            on_delivery(RuntimeError("no leader"))
            self.sent[0](None)

    def wait(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def flush(self) -> None:
        for each in self.sent[3:]:
            each(None)


def test_each_send_is_timed_by_itself_and_one_that_ends_with_an_error_has_failed() -> None:
    side = Slow()
    with paced(side) as sends:
        while len(side.sent) < 3:
            time.sleep(0.001)
        time.sleep(0.005)
        (second, third, first), failed_count = sends.cut()
        while len(side.sent) < 4:
            time.sleep(0.001)
    assert failed_count == 1
    assert first >= 0.02
    assert third < first
    assert second < first
    taken, failed_count = sends.cut()
    assert (len(taken), failed_count) == (len(side.sent) - 3, 0), "the end waits for what is under way"
