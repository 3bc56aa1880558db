"""The harness of the benchmarks: shares, bars, and the texts of a report."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from io import StringIO
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from rich.console import Console

import rayka
import rayka.testing
from benchmarks import groups, record_calls
from benchmarks.bare_sockets import bare_copies
from benchmarks.end_to_end import latencies
from benchmarks.gaps import Acknowledgements, Seen, Shares
from benchmarks.group_gaps import Heartbeats, commits_of, longest_gaps, pauses_around
from benchmarks.group_members import PolledGroup, RaykaMember, Trickle, settle_s, until
from benchmarks.group_offsets import RaykaGroups, rayka_fill, rayka_loaded_s
from benchmarks.harness import Bar, Row, amount, compare, in_turn, median_share
from benchmarks.report import Report, print_table, write_json, write_readme
from benchmarks.scale_nodes import QUICK_IMAGE_PARTITIONS, image_rows
from benchmarks.single_records import rate_by_port, rate_by_producer


def drifting(*values: float) -> Callable[[], float]:
    remaining = iter(values)
    return lambda: next(remaining)


def test_a_share_cancels_the_drift_of_the_machine() -> None:
    limit = drifting(0, 100, 80, 60, 40)  # slower from run to run; the first warms up
    value = drifting(0, 45, 35, 25)  # half of the limit around it
    measured = compare(value, limit, rounds=3)
    assert measured.share == 0.5
    assert measured.value == 35
    assert measured.limit == 70


@pytest.mark.parametrize(
    ("bar", "share", "is_met", "text"),
    [
        (Bar(0.6), 0.61, True, "≥ 60%"),
        (Bar(0.6), 0.59, False, "≥ 60%"),
        (Bar(5), 5.5, True, "≥ 5 x"),
        (Bar(1.8, at_most=True), 1.7, True, "≤ 1.8 x"),
        (Bar(1.8, at_most=True), 1.9, False, "≤ 1.8 x"),
    ],
)
def test_a_bar_is_reached_from_its_side(bar: Bar, share: float, is_met: bool, text: str) -> None:
    assert Row(what="a", value=1, unit="s", share=share, bar=bar).is_met is is_met
    assert str(bar) == text


def test_a_row_without_a_bar_is_neither_met_nor_missed() -> None:
    assert Row(what="a", value=1, unit="s", share=0.1).is_met is None


def test_what_is_allowed_is_a_limit_that_may_be_reached() -> None:
    rows = [Row.allowed("a", value, "s", 2.0, note="b") for value in (1.0, 2.0, 2.5)]
    assert [(row.share, row.is_met, row.limit, row.note) for row in rows] == [
        (0.5, True, 2.0, "b"),
        (1.0, True, 2.0, "b"),
        (1.25, False, 2.0, "b"),
    ]


def test_a_row_with_two_bars_is_met_when_both_are() -> None:
    fast = Bar(0.8, at_most=True)
    assert Row(what="a", value=1, unit="s", share=0.7, bar=Bar(0.6), peer=2, ratio_bar=fast).is_met is True
    assert Row(what="a", value=1, unit="s", share=0.5, bar=Bar(0.6), peer=2, ratio_bar=fast).is_met is False
    assert Row(what="a", value=1, unit="s", share=0.7, bar=Bar(0.6), peer=1, ratio_bar=fast).is_met is False
    assert Row(what="a", value=1, unit="s", ratio_bar=fast).is_met is None  # no peer ran


def test_sides_are_measured_in_turn_after_a_round_that_does_not_count() -> None:
    taken = in_turn({"limit": drifting(0, 100, 50), "ours": drifting(0, 40, 30)}, rounds=2)
    assert taken == {"limit": [100, 50], "ours": [40, 30]}
    assert median_share(taken["ours"], taken["limit"]) == 0.5


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (21_400_000, "records/s", "21.4 M records/s"),
        (5_200_000_000, "B/s", "5.2 GB/s"),
        (0.0013, "s", "1.3 ms"),
        (0.000121, "s", "121 µs"),
        (4.3, "s", "4.3 s"),
        (0.4, "% of a core", "0.4 % of a core"),
    ],
)
def test_amounts_read_as_people_say_them(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def test_a_report_says_what_the_limit_was_and_how_much_of_it_was_reached(tmp_path: Path) -> None:
    row = Row(
        what="encode",
        value=30e6,
        unit="records/s",
        limit=40e6,
        limit_what="pyarrow",
        share=0.75,
        bar=Bar(0.6),
    )
    printed = StringIO()
    print_table("batch", [row], Console(width=160, file=printed))
    write_json(tmp_path / "rows.json", [row], {"machine": "here"})
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][0]["is_met"] is True
    assert "30 M records/s" in printed.getvalue()
    assert "75%" in printed.getvalue()
    assert "limit: pyarrow" in printed.getvalue()


def test_a_run_that_ends_early_keeps_the_rows_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    seen = []

    def rows() -> Iterator[Row]:
        yield Row(what="first", value=1, unit="s")
        seen.append([each["what"] for each in json.loads(path.read_text())["rows"]])
        raise RuntimeError("no process")

    report = Report({"machine": "here"}, json_path=path, readme=None)
    report.take("broken", rows())
    report.take("next", [Row(what="second", value=2, unit="s")])
    assert seen == [["first"]]
    assert [each["what"] for each in json.loads(path.read_text())["rows"]] == ["first", "second"]
    assert list(report.failures) == ["broken"]


def test_the_readme_gets_the_new_tables_and_keeps_those_that_were_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(
        "# Figures\n<!-- last run -->\n### batch\n\n- machine: there\n<!-- end of last run -->\nThe end.\n"
    )
    row = Row(what="start", value=1.76, unit="s", limit=1, share=1.76, bar=Bar(1.8, at_most=True), peer=3.52)
    write_readme(path, {"client": [row]}, {"machine": "here"})
    write_readme(path, {"client": [row]}, {"machine": "here"})
    assert path.read_text().split("\n") == [
        "# Figures",
        "<!-- last run -->",
        "### batch",
        "",
        "- machine: there",
        "",
        "### client",
        "",
        "- machine: here",
        "",
        "| what | settings | value | limit | share | bar | peer | ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| start |  | 1.76 s | 1 s | 1.76 x | ≤ 1.8 x | 3.52 s | 0.50 |",
        "<!-- end of last run -->",
        "The end.",
        "",
    ]


def test_the_shares_of_a_gap_make_up_the_whole() -> None:
    acknowledgements = Acknowledgements((-0.01, 0.0, 0.4, 0.41))
    shares = Shares.of(acknowledgements, known=Seen(0.1, 0.004), led=Seen(0.3, 0.006))
    told = str(shares)
    assert told == "detection 100 ms (25%), election 200 ms (50%), client 100 ms (25%), seen within 6 ms"


def test_what_was_seen_after_the_end_of_a_gap_had_happened_before() -> None:
    """The observer may be later than the producer: no share is below 0."""
    acknowledgements = Acknowledgements((0.0, 0.4, 0.45, 0.5, 0.55))
    shares = Shares.of(acknowledgements, known=Seen(0.6, 0.2), led=Seen(0.5, 0.2))
    assert (shares.detection_s, shares.election_s, shares.client_s) == (0.4, 0.0, 0.0)


def test_shares_are_those_of_the_gap_at_the_election_and_not_of_a_longer_one() -> None:
    acknowledgements = Acknowledgements((0.0, 0.02, 0.05, 1.0, 1.5))
    shares = Shares.of(acknowledgements, known=Seen(0.01, 0.004), led=Seen(0.03, 0.004))
    assert str(shares).startswith("detection 0 ms (0%), election 10 ms (33%), client 20 ms (67%)")
    assert acknowledgements.longest_gap_s == 0.95


def test_the_bare_copies_are_in_three_files_once_they_are_acknowledged(tmp_path: Path) -> None:
    with closing(bare_copies(tmp_path, replicas=3)) as calls:
        calls.round_trips(1_000, count=3)
        calls.byte_rate([1 << 20] * 5, in_flight=5)
        copies = [path.read_bytes() for path in sorted(tmp_path.glob("*.log"))]
    assert [len(each) for each in copies] == [3_000 + 5 * (1 << 20)] * 3
    assert len(set(copies)) == 1


def test_latencies_are_those_of_this_run_and_of_each_record() -> None:
    arrived: Queue[bytes] = Queue()
    arrived.put(bytes(100))  # of a run before
    taken = latencies(arrived.put, lambda: [arrived.get(timeout=60)], size_bytes=100, rate=10_000, count=20)
    assert len(taken) == 20
    assert min(taken) > 0


def test_a_part_that_fails_takes_no_other_part_with_it() -> None:
    def part() -> Iterator[Row]:
        yield Row(what="first", value=1, unit="s")
        raise RuntimeError("no process")

    failures: list[Exception] = []
    assert [row.what for _ in range(2) for row in groups._guarded(part(), failures)] == ["first", "first"]
    assert [str(each) for each in failures] == ["no process", "no process"]


def test_one_controllers_image_has_a_row_for_its_snapshot_and_for_each_long_request() -> None:
    rows = list(image_rows(QUICK_IMAGE_PARTITIONS))
    assert {row.settings for row in rows} == {"2,500 partitions of 50 topics, 3 replicas"}
    assert [row.what.removesuffix(": the controller's longest turn") for row in rows] == [
        "snapshot of an image",
        "load that snapshot",
        "fence a broker",
        "unfence it",
        "shut a broker down",
        "elect leaders",
        "delete all topics",
    ]


def test_a_group_settles_commits_and_goes_on_without_a_member() -> None:
    quickly = {"group.initial.rebalance.delay.ms": 0}
    with rayka.testing.cluster(config=quickly) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("t", partitions=4)

        def make(options: Mapping[str, Any]) -> RaykaMember:
            return RaykaMember(cluster, "t", options)

        options = {"group.id": "g", "heartbeat.interval.ms": 100, "auto.offset.reset": "latest"}
        assert 0 < settle_s(make, {**options, "group.id": "settles"}, members=2, partitions=4) < 30
        producer = rayka.Producer(cluster=cluster, linger_ms=0)
        trickle = Trickle(lambda each: producer.send("t", b"x", partition=each), producer.close, partitions=4)
        with PolledGroup(make, options, 2, poll_s=0.05) as group:
            group.join()
            until(lambda: group.shares(4), "two members share four partitions")
            going, staying = group.polls
            victims = set(going.mine)
            with trickle:
                group.polls = [staying]
                pauses = pauses_around(group, 4, victims, going.stop, after_s=0.3)
            assert 0 < pauses.killed_s < 30
            assert 0 < pauses.others_s < 30
            staying.pause()
            assert isinstance(staying.member, RaykaMember)
            calls = [commits_of(staying.member), Heartbeats(cluster.network(), staying.member.metadata)]
            for call in calls:
                call()
            assert all(0 < each < 30 for each in longest_gaps(calls, lambda: None, 0.2))


class FakeMember:
    """Owns two partitions. After `fail`, the second one has no records, and commits are refused."""

    rebalances = 0

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._fails = False

    def subscribe(self) -> None:
        pass

    def fail(self) -> None:
        self._fails = True

    def poll(self, timeout_s: float) -> list[int]:
        time.sleep(timeout_s)
        return [0] if self._fails else [0, 1]

    def assignment(self) -> set[int]:
        return {0, 1}

    def commit(self, offset: int) -> None:
        if self._fails:
            raise LookupError("no coordinator")

    def close(self) -> None:
        pass


def test_a_pause_that_goes_on_when_the_measurement_ends_counts() -> None:
    with PolledGroup(FakeMember, {}, 1, poll_s=0.01) as group:
        group.join()
        member = group.polls[0].member
        assert isinstance(member, FakeMember)
        pauses = pauses_around(group, 2, {0}, member.fail, after_s=0.5)
    assert pauses.others_s >= 0.5
    failing = FakeMember({})
    assert longest_gaps([commits_of(failing)], failing.fail, 0.5)[0] >= 0.5


def test_commits_and_offsets_are_counted_until_all_are_answered() -> None:
    with rayka.testing.cluster() as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("t", partitions=1)
            admin.create_topic("loaded", partitions=20)
        with RaykaGroups(cluster, "t", 3) as found:
            assert found.rate(30) > 0
        rayka_fill(cluster, groups=3, partitions=20)
        assert rayka_loaded_s(cluster, groups=3) > 0
        with rayka.Admin(cluster=cluster) as admin:
            assert len(admin.group_offsets("loaded-2")) == 20


def test_single_records_are_acknowledged_while_the_time_lasts() -> None:
    with rayka.testing.cluster(brokers=3) as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("t", partitions=6, replication_factor=3)
        assert rate_by_port(cluster, "t", in_flight=20, seconds_long=0.2) > 0
        with rayka.Producer(cluster=cluster, linger_ms=0, batch_size=1) as producer:
            assert rate_by_producer(producer, "t", 6, in_flight=20, seconds_long=0.2) > 0
        assert {each.partition for each in rayka.read("t", cluster=cluster)} == set(range(6))


def test_the_cost_of_one_record_is_counted_beyond_that_of_an_idle_cluster() -> None:
    calls, processor_time = record_calls.run(quick=True)
    assert 100 < calls.value < 10_000
    assert 0 < processor_time.value < 100
