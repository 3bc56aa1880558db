"""`rayka topic`, `partition` and `broker` without a cluster: plans, files, usage, and what is printed."""

import json
import uuid
from typing import Any

import pytest

from rayka.cli import broker_commands as broker
from rayka.cli import partition_commands as partition
from rayka.cli import topic_commands
from rayka.cli import topic_commands as topic
from rayka.cli.main import run
from rayka.cli.partition_commands import check_brokers, parse_json, parse_partition, parse_replicas
from rayka.client.admin.admin_arguments import assignment_of, assignments_of
from rayka.client.admin.admin_partition_results import (
    BrokerLogDirs,
    ElectionOutcome,
    LastCleaningInfo,
    LastRetentionInfo,
    LogCleaningInfo,
    LogDir,
    ReplicaLogInfo,
)
from rayka.client.admin.admin_results import (
    BrokerDescription,
    PartitionDescription,
    TopicDescription,
)
from rayka.errors import (
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    PreferredLeaderNotAvailable,
)
from rayka.ids import Role, TopicPartition

COMMANDS = [
    *(f"topic {verb}" for verb in ("create", "list", "describe", "alter", "delete")),
    *(f"topic {verb}" for verb in ("add-partitions", "delete-records")),
    *(f"broker {verb}" for verb in ("list", "describe", "drain", "remove", "unregister")),
    *(f"broker config {verb}" for verb in ("describe", "alter")),
    *(f"partition {verb}" for verb in ("reassign", "reassignments", "cancel", "elect-leaders")),
]  # fmt: skip


def a_broker(node_id: int, replicas: int = 0, **other: Any) -> BrokerDescription:
    return BrokerDescription(node_id, "here", False, ("/data",), replica_count=replicas, **other)


def a_topic(name: str, *replicas: tuple[int, ...], **other: Any) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(number, each[0], 0, each, each, **other) for number, each in enumerate(replicas)
    )
    return TopicDescription(name, uuid.UUID(int=1), partitions, {})


# ---- What people write ----


def test_replicas_are_written_by_partition() -> None:
    plan = parse_replicas(["0:1,2,3", "2:3, 1"], "orders")
    assert plan == {TopicPartition("orders", 0): (1, 2, 3), TopicPartition("orders", 2): (3, 1)}


@pytest.mark.parametrize("text", ["", "0", "0:", ":1", "0:1,", "0:a", "a:1", "0=1", "-1:1", "0:2147483648"])
def test_replicas_that_cannot_be_read_are_shown(text: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match="such as 0:1,2,3, found"):
        parse_replicas([text], "orders")


def test_kafkas_reassignment_file_is_read() -> None:
    entries = [
        {"topic": "a", "partition": 1, "replicas": [3, 1], "log_dirs": ["any", "any"]},
        {"topic": "b", "partition": 0, "replicas": [2]},
    ]
    plan = parse_json(json.dumps({"version": 1, "partitions": entries}), "f.json")
    assert plan == {TopicPartition("a", 1): (3, 1), TopicPartition("b", 0): (2,)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "f.json: not JSON"),
        ("[]", 'f.json: expected {"version": 1'),
        ('{"version": 2, "partitions": []}', 'f.json: expected {"version": 1'),
        ('{"partitions": [5]}', r"f.json, partitions\[0\]: expected"),
        (
            '{"partitions": [{"topic": "a", "partition": true, "replicas": [1]}]}',
            r"partitions\[0\]: expected",
        ),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": []}]}', r"partitions\[0\]: expected"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": ["1"]}]}', r"partitions\[0\]: expected"),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": ["/disk"]}]}',
            "brokers choose",
        ),
        (
            json.dumps({"partitions": [{"topic": "a", "partition": 0, "replicas": [1]}] * 2}),
            "a-0 is given twice",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_where(text: str, says: str) -> None:
    with pytest.raises(InvalidReplicaAssignment, match=says):
        parse_json(text, "f.json")


def test_a_broker_named_twice_is_told_with_its_partition() -> None:  # B45
    plan = {**parse_replicas(["0:1"], "a"), **parse_replicas(["7:1,1"], "b")}
    with pytest.raises(InvalidReplicaAssignment, match=r"replicas of b-7: .* each once; found \[1, 1\]"):
        assignment_of(plan)
    with pytest.raises(InvalidReplicaAssignment, match=r"assignments\[1\]: .* each once; found \[2, 2\]"):
        assignments_of([[1, 2], [2, 2]])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_verb_has_help_names_a_cluster_and_prints_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--cluster", "--address", "--json"))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("topic alter orders", "nothing to change"),
        ("topic alter orders --config x", "expected KEY=VALUE"),
        ("topic alter orders -c flush.ms=1 --delete-config flush.ms", "keep one"),
        ("topic delete-records orders --before x", "expected an offset, or `end`"),
        ("topic delete-records orders", "--before"),
        ("partition reassign", "give --topic and --replicas, or --from-json"),
        ("partition reassign --topic orders", "give --topic and --replicas"),
        ("partition reassign --topic orders --from-json x", "either --from-json"),
        ("partition reassign --from-json nowhere.json", "nowhere.json"),
        ("partition elect-leaders", "give --topic"),
        ("partition elect-leaders --all --topic orders", "give --topic"),
        ("broker config describe one", "expected a broker's id, or `all`"),
        ("broker drain", "BROKER"),
    ],
)
def test_wrong_usage_is_told_without_a_cluster(
    command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "--address", "127.0.0.1:1"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("replicas", "says"),
    [
        ((1, 9), r"orders-0: \[9\] are no brokers"),
        ((1, 1001), r"\[1001\] are no brokers"),
        ((1, 1), "each once"),
    ],
)
def test_a_dry_run_refuses_replicas_that_the_controller_would(replicas: tuple[int, ...], says: str) -> None:
    brokers = [a_broker(1), a_broker(2), a_broker(1001, roles=(Role.COORDINATOR,))]
    plan = {TopicPartition("orders", 0): replicas}
    check_brokers({TopicPartition("orders", 0): (2, 1)}, brokers)
    with pytest.raises(InvalidReplicaAssignment, match=says):
        check_brokers(plan, brokers)


# ---- What is printed ----


def test_partitions_show_which_replicas_are_behind_or_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    whole = PartitionDescription(0, 1, 7, (1, 2), (1, 2), lags=(0, 0))
    behind = PartitionDescription(1, 1, 7, (1, 2, 3), (1,), (2,), lags=(0, 15, None))
    headless = PartitionDescription(2, -1, 9, (1, 2), (), (1,), lags=(None, None))
    moving = PartitionDescription(3, 1, 7, (1, 2, 4), (1, 2), (), (4,), (2,), lags=(0, 0, 90))
    diskless = PartitionDescription(
        4, 3, 7, (1, 2, 3), (3,), lags=(9, 9, 0), full_replicas=(1,), offline_replicas=(2,)
    )
    topic.print_partitions([whole, behind, headless, moving, diskless])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["partition", "leader", "epoch", "replicas", "isr", "elr", "lag", "state"]
    assert lines[1] == ["0", "1", "7", "1,2", "1,2", "2:0"]
    assert lines[2] == ["1", "1", "7", "1,2,3", "1", "2", "2:15", "3:?", "under-replicated"]
    assert lines[3] == ["2", "none", "9", "1,2", "1", "1:?", "2:?", "offline,", "under-replicated"]
    assert lines[4] == ["3", "1", "7", "1,2,4", "1,2", "2:0", "4:90", "reassigning", "+4", "-2"]
    assert " ".join(lines[5][-9:]) == "under-replicated, disk full on 1, disk failed on 2"


def test_a_partition_without_a_leader_is_told_with_what_it_waits_for_and_a_way_on() -> None:  # B46
    led = PartitionDescription(0, 1, 7, (1, 2), (1, 2))
    waits_for_one = PartitionDescription(1, -1, 9, (1, 2, 3), (), (1, 3))
    nobody_is_whole = PartitionDescription(2, -1, 9, (1, 2), (), ())
    lines = topic.remedies(
        TopicDescription("orders", uuid.UUID(int=1), (led, waits_for_one, nobody_is_whole), {})
    )
    assert [line.split(" runs ")[0] for line in lines] == [
        "orders-1 is offline until broker 1 or 3",
        "orders-2 is offline until the broker that led it last",
    ]
    assert lines[1].endswith("rayka partition elect-leaders --topic orders --partition 2 --unclean")


def a_log(
    partition: int,
    cleaning: LogCleaningInfo | None,
    oldest_ms: int = 1_700_000_000_000,
    retention: LastRetentionInfo | None = None,
) -> ReplicaLogInfo:
    return ReplicaLogInfo(
        "orders", partition, uuid.UUID(int=1), 12_300_000, 0, 9, 9, True,
        segment_count=4, oldest_timestamp_ms=oldest_ms, cleaning=cleaning, retention=retention,
    )  # fmt: skip


def test_the_logs_of_leaders_are_shown_and_those_of_silent_brokers_are_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = LastCleaningInfo(1_700_000_000_000, 9, 40_100_000, 12_000_000)
    gone = LastRetentionInfo(1_700_000_000_000, "retention.ms", 5, 2, 7_000_000)
    logs = [
        a_log(0, LogCleaningInfo(75, 25, 0.25, last=last)),
        a_log(1, LogCleaningInfo(0, 0, 0.0), oldest_ms=-1),
        a_log(2, None, oldest_ms=1 << 62, retention=gone),
        None,
    ]
    partitions = [
        PartitionDescription(number, 2, 7, (1, 2), (1, 2), logs=(None, log))
        for number, log in enumerate(logs)
    ]
    topic_commands.print_logs(partitions)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    headings = "partition offsets records size segments oldest record dirty last compaction last retention"
    assert lines[0] == headings.split()
    assert lines[1][:6] == ["0", "0-9", "9", "12.3", "MB", "4"]
    assert lines[1][6].startswith("2023-11-1")
    assert lines[1][8] == "25%"
    assert lines[1][11:] == ["40.1", "MB", "to", "12.0", "MB", "none"]
    assert lines[2] == ["1", "0-9", "9", "12.3", "MB", "4", "none", "0%", "none", "none"]
    assert lines[3][:10] == ["2", "0-9", "9", "12.3", "MB", "4", str(1 << 62), "ms", "-", "-"]
    assert lines[3][12:] == ["7.0", "MB", "(retention.ms)"]
    assert lines[4] == ["3", *["unknown"] * 8]
    plain = TopicDescription("orders", uuid.UUID(int=1), tuple(partitions), {}).to_dict()
    first, *_, silent = json.loads(json.dumps(plain))["partitions"]
    assert first["logs"][0] is None
    assert first["logs"][1]["cleaning"]["last"]["output_bytes"] == 12_000_000
    assert silent["logs"] == [None, None]


def test_a_replica_that_cannot_be_compacted_is_named_with_the_reason() -> None:
    stuck = a_log(0, LogCleaningInfo(0, 9, 1.0, "orders-0 cannot be compacted: a bad batch"))
    led_elsewhere = PartitionDescription(0, 1, 7, (1, 2), (1, 2), logs=(a_log(0, None), stuck))
    assert topic_commands.compaction_problems("orders", [led_elsewhere]) == [
        "orders-0 grows on broker 2: orders-0 cannot be compacted: a bad batch"
    ]


def test_a_replica_that_is_only_coming_does_not_make_a_partition_under_replicated() -> None:  # B45
    assert not PartitionDescription(0, 1, 0, (1, 2), (1,), adding_replicas=(2,)).is_under_replicated
    assert PartitionDescription(0, 1, 0, (1, 2), (1,)).is_under_replicated


def test_a_topic_is_plain_values_for_programs() -> None:
    plain = a_topic("a", (1, 2), lags=(0, None)).to_dict()
    assert json.loads(json.dumps(plain))["partitions"][0]["lags"] == [0, None]
    assert plain["partitions"][0]["is_under_replicated"] is False


def test_a_broker_is_shown_with_its_disks(capsys: pytest.CaptureFixture[str]) -> None:
    good = LogDir("/a", uuid.UUID(int=1), "", 2 * 10**9, ())
    bad = LogDir("/b", uuid.UUID(int=2), "I/O error", 0, ())
    broker.print_broker(a_broker(1, 5, rack="x"), BrokerLogDirs(1, (good, bad)))
    text = capsys.readouterr().out
    assert "broker 1  active  host here  rack x" in text
    assert "2.0 GB" in text
    assert "I/O error" in text
    broker.print_broker(a_broker(1), BrokerLogDirs(1, (), "broker-1 did not answer"))
    assert "its disks are not known: broker-1 did not answer" in capsys.readouterr().out


def test_a_replica_on_its_way_between_directories_is_shown_with_its_lag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = ReplicaLogInfo("orders", 0, uuid.UUID(int=9), 5_000, 0, 12, 12, True)
    future = ReplicaLogInfo(
        "orders", 0, uuid.UUID(int=9), 2_000, 0, 5, 5, False, is_future=True, offset_lag=7
    )
    one, two = (
        LogDir("/a", uuid.UUID(int=1), "", 10, (here,)),
        LogDir("/b", uuid.UUID(int=2), "", 10, (future,)),
    )
    broker.print_broker(a_broker(1), BrokerLogDirs(1, (one, two)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2:] for line in lines if line.startswith("/")] == [["1", "ok"], ["0", "ok"]]
    assert lines[-1].split() == ["orders-0", "/b", "2.0", "kB", "7"]


def test_a_partition_is_named_by_its_topic_and_number() -> None:
    assert parse_partition("my-orders-12") == TopicPartition("my-orders", 12)
    for text in ("orders", "-1", "orders-x", "orders-"):
        with pytest.raises(InvalidReplicaAssignment, match="TOPIC-PARTITION"):
            parse_partition(text)


def test_a_list_of_brokers_tells_a_full_directory_from_a_failed_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The controller counts both as offline."""
    paths = ("/a", "/b", "/c")
    brokers = [
        BrokerDescription(each, "here", False, paths, offline_data_dirs=("/a", "/b")) for each in (1, 2)
    ]
    full = LogDir("/a", uuid.UUID(int=1), "disk full", 0, (), is_full=True)
    failed = LogDir("/b", uuid.UUID(int=2), "I/O error", 0, ())
    silent = BrokerLogDirs(2, (), "broker-2 did not answer")
    broker.print_brokers(brokers, [BrokerLogDirs(1, (full, failed)), silent])
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.endswith("/a (not writable), /b (offline), /c")
    assert second.endswith("/a (offline), /b (offline), /c")


def test_elections_are_shown_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    errors = (None, ElectionNotNeeded("x"), PreferredLeaderNotAvailable("broker 2 is fenced"))
    partition.print_outcomes([ElectionOutcome(TopicPartition("a", n), each) for n, each in enumerate(errors)])
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [["a-0", "elected"], ["a-1", "led already"], ["a-2", "broker 2 is fenced"]]
