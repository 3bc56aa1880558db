"""`rayka bench`: its figures are those of records that were acknowledged or read, and its topic is gone afterwards."""

import dataclasses
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rayka
from rayka import testing
from rayka.cli.bench_commands import (
    Measure,
    check_all,
    measure_consumer,
    measure_end_to_end,
    measure_latency,
    measure_producer,
)
from rayka.cli.bench_group import (
    Figures,
    GroupFigures,
    Load,
    bench_group,
    measure_group_consumer,
    measure_group_end_to_end,
    one_by_one,
    percentile,
)
from rayka.cli.main import run
from rayka.cli.output import print_json
from rayka.cluster import Cluster
from rayka.errors import ConfigError, RecordTooLarge, UnavailableError
from rayka.testing import InProcessCluster

BENCHMARKS = ("producer", "consumer", "latency", "end-to-end")
LOAD = Load(record_count=200, size_bytes=100, configs={})


@pytest.fixture(scope="module")
def here() -> Iterator[InProcessCluster]:
    with testing.cluster(config={"group.initial.rebalance.delay.ms": 100}) as cluster:
        yield cluster


def made(here: InProcessCluster, name: str, **configs: str) -> str:
    with rayka.Admin(cluster=here) as admin:
        admin.create_topic(name, partitions=2, configs=configs)
    return name


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=50).map(sorted),
    st.sampled_from([0.5, 0.95, 0.99, 0.999]),
)
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    ordered: list[float], share: float
) -> None:
    found = percentile(ordered, share)
    assert sum(each <= found for each in ordered) >= share * len(ordered)
    assert sum(each < found for each in ordered) < share * len(ordered)


def test_figures_are_rates_in_decimal_units_and_percentiles_in_ms() -> None:
    latencies_s = [number / 1000 for number in range(1000, 0, -1)]
    assert Figures.of("producer", 1000, 4_000_000, 2.0, latencies_s) == Figures(
        "producer", 1000, 2.0, 500.0, 2.0, 500.0, 950.0, 990.0, 999.0
    )


@pytest.mark.parametrize("measure", [measure_producer, measure_latency, measure_end_to_end])
def test_as_many_records_of_that_size_are_sent_as_asked_for_and_some_that_warm_up(
    measure: Measure, here: InProcessCluster
) -> None:
    topic = made(here, measure.__name__)
    figures = measure(here, topic, LOAD)
    assert isinstance(figures, Figures)
    records = list(rayka.read(topic, cluster=here))
    assert 200 < len(records) <= 221
    assert {len(each.value) for each in records} == {100}
    assert figures.records == 200
    assert figures.records_per_s == pytest.approx(200 / figures.seconds)
    assert figures.mb_per_s == pytest.approx(0.02 / figures.seconds)
    assert 0 < figures.p50_ms <= figures.p95_ms <= figures.p99_ms <= figures.p99_9_ms


def test_what_the_first_records_take_to_warm_up_stays_out_of_the_figures() -> None:
    now_s = 0.0

    def take(number: int) -> None:
        nonlocal now_s
        now_s += 1.0 if number < 3 else 0.25

    load = Load(record_count=20, size_bytes=1_000_000, configs={})
    figures = one_by_one("latency", load, take, clock_s=lambda: now_s)
    assert now_s == 3 * 1.0 + 20 * 0.25
    assert figures == Figures("latency", 20, 5.0, 4.0, 4.0, 250.0, 250.0, 250.0, 250.0)


def test_a_consumer_is_measured_by_what_it_has_read(here: InProcessCluster) -> None:
    topic = made(here, "consumed")
    with rayka.Producer(cluster=here) as producer:
        producer.send_batch(topic, [rayka.Record("", 0, 0, 0, b"key", b"value!!", [])] * 50)
    figures = measure_consumer(here, topic, LOAD)
    assert figures.records == 50
    assert figures.mb_per_s == pytest.approx(50 * 10 / figures.seconds / 1e6)


def test_a_group_is_measured_by_what_all_its_members_have_read_and_is_deleted(here: InProcessCluster) -> None:
    topic = made(here, "shared")
    with rayka.Producer(cluster=here) as producer:
        for number in range(100):
            producer.send(topic, b"value!!", key=b"key", partition=number % 2)
    load = dataclasses.replace(LOAD, members=3)  # one of them has no partition
    figures = measure_group_consumer(here, topic, load)
    reading, commits = figures.reading, figures.commits
    assert (figures.benchmark, figures.members, reading.records, commits.records) == ("consumer", 3, 100, 600)
    assert reading.mb_per_s == pytest.approx(100 * 10 / reading.seconds / 1e6)
    assert 0.1 <= figures.settle_seconds < 30, "with the time for which a new group waits"
    assert 0 < commits.p50_ms <= commits.p99_9_ms
    with rayka.Admin(cluster=here) as admin:
        assert admin.list_groups() == []


def test_each_record_passes_through_the_member_that_has_its_partition(here: InProcessCluster) -> None:
    topic = made(here, "through-a-group")
    figures = measure_group_end_to_end(here, topic, dataclasses.replace(LOAD, members=2))
    assert (figures.benchmark, figures.members) == ("end-to-end", 2)
    assert (figures.reading.benchmark, figures.reading.records) == ("end-to-end", 200)
    assert 200 < len(list(rayka.read(topic, cluster=here))) <= 221


def test_a_group_is_left_and_deleted_when_a_benchmark_fails(here: InProcessCluster) -> None:
    topic = made(here, "failing")

    def fail() -> None:
        with bench_group(here, topic, dataclasses.replace(LOAD, members=2), {}, "earliest") as group:
            group.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with rayka.Admin(cluster=here) as admin:
        assert admin.list_groups() == []


@pytest.mark.parametrize("measure", [measure_consumer, measure_group_consumer])
def test_an_empty_topic_is_said_to_be_empty(measure: Measure, here: InProcessCluster) -> None:
    with pytest.raises(UnavailableError, match="has no records to read; leave out --topic"):
        measure(here, made(here, f"empty-{measure.__name__}"), LOAD)


def test_records_that_are_refused_are_an_error_and_no_figure(here: InProcessCluster) -> None:
    topic = made(here, "refusing", **{"max.message.bytes": "150"})
    for measure in (measure_producer, measure_latency, measure_end_to_end, measure_group_end_to_end):
        with pytest.raises(RecordTooLarge):
            measure(here, topic, dataclasses.replace(LOAD, size_bytes=500, members=1))
    with rayka.Producer(cluster=here) as producer:
        futures = [producer.send(topic, b"x" * size) for size in (10, 500, 10)]
        with pytest.raises(RecordTooLarge):
            check_all(futures)


def test_an_unknown_setting_of_the_client_is_named(here: InProcessCluster) -> None:
    load = dataclasses.replace(LOAD, configs={"lingr_ms": "1"})
    with pytest.raises(ConfigError, match="'linger_ms'"):
        measure_producer(here, "any", load)


@pytest.mark.ray
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_benchmark_prints_its_figures_and_leaves_no_topic(
    benchmark: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "bench",
        benchmark,
        "--cluster",
        cluster.name,
        "--records",
        "100",
        "--size",
        "64",
        "--partitions",
        "3",
    ]
    assert run([*command, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == [each.name for each in dataclasses.fields(Figures)]
    assert (figures["benchmark"], figures["records"] >= 100) == (benchmark, True)
    assert run(command) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["benchmark", "records", "records/s", "MB/s", "p50", "p95", "p99", "p99.9"]
    assert row.split()[0] == benchmark
    with rayka.Admin(cluster=cluster) as admin:
        assert not [name for name in admin.list_topics() if name.startswith("rayka-bench-")]


@pytest.mark.ray
def test_a_benchmark_through_a_group_prints_its_commits_too_and_leaves_no_group(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "consumer", "--cluster", cluster.name, "--records", "100", "--group", "2"]
    assert run(command) == 0
    header, reading, commits, settled = capsys.readouterr().out.splitlines()
    assert [each.split()[0] for each in (header, reading, commits)] == ["benchmark", "consumer", "commit"]
    assert commits.split()[1] == "400"
    assert settled.startswith("2 members had their partitions "), "a topic of its own has one for each"
    with rayka.Admin(cluster=cluster) as admin:
        assert not [each for each in admin.list_groups() if each.group_id.startswith("rayka-bench-")]
        assert not [name for name in admin.list_topics() if name.startswith("rayka-bench-")]


def test_the_figures_of_a_group_are_one_json_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reading, commits = (Figures.of(name, 10, 1000, 1.0, [0.5]) for name in ("consumer", "commit"))
    print_json(GroupFigures("consumer", 2, 3.5, reading, commits))
    found = json.loads(capsys.readouterr().out)
    assert (found["members"], found["settle_seconds"]) == (2, 3.5)
    assert (found["reading"]["records_per_s"], found["commits"]["p50_ms"]) == (10.0, 500.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("consumer --group 0", "0 is not in the range x>=1"),
        ("producer --topic t --partitions 3", "--topic is there already; leave out --partitions"),
        ("end-to-end --size 15", "15 is not in the range x>=16"),
        ("consumer --records 0", "0 is not in the range x>=1"),
        ("latancy", "Did you mean 'latency'?"),
    ],
)
def test_wrong_usage_is_found_before_a_cluster_is_looked_for(
    options: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *options.split(), "--address", "127.0.0.1:1"]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
