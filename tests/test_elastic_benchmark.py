"""The benchmark of brokers that come and go: its figures, and the part that an in-process cluster can play."""

import time

import pytest

import rayka.testing
from benchmarks.elastic import Figures, PacedSends, paced, phases, rows
from benchmarks.elastic_sides import FACTOR, PARTITIONS, RaykaSide, added, copied_bytes

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
        assert 0 < figures.taken_s < figures.allowed_s
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


def test_a_send_that_waits_delays_those_behind_it_on_the_clock_and_one_that_raises_has_failed() -> None:
    sent = []

    def send() -> None:
        sent.append(time.monotonic())
        if len(sent) == 1:
            time.sleep(0.1)
        if len(sent) == 3:
            raise RuntimeError("no leader")

    with paced(send) as sends:
        assert isinstance(sends, PacedSends)
        while len(sent) < 6:
            time.sleep(0.01)
        taken, failed_count = sends.cut()
    assert failed_count == 1
    assert taken[0] >= 0.1
    assert taken[1] >= 0.08, "due 10 ms after the first"
    assert sends.cut()[0] is not taken
