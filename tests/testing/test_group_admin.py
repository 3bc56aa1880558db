"""Groups as operators see and change them, on the real nodes in this process (E10)."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import click
import pytest

import rayka
import rayka.testing
from rayka import Admin, Consumer, Producer, TopicPartition
from rayka.cli import consume_command, group_commands
from rayka.cli.shared_options import Target
from rayka.client.admin.admin_group_results import GroupListing, GroupOffset, OffsetReset
from rayka.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    UnknownTopicOrPartition,
)
from rayka.ids import NO_EPOCH
from rayka.protocol.groups import GroupState
from rayka.testing import InProcessCluster
from tests.testing.waiting import wait_until

CONFIG = {"offsets.topic.num.partitions": 3, "log.retention.ms": -1, "group.initial.rebalance.delay.ms": 0}
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(brokers=2, config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: InProcessCluster) -> Iterator[Admin]:
    with Admin(cluster) as admin:
        yield admin


@pytest.fixture
def topic(cluster: InProcessCluster, admin: Admin) -> str:
    """With ten records in partition 0 of two."""
    name = f"orders-{next(_numbers)}"
    admin.create_topic(name, partitions=2, replication_factor=1)
    with Producer(cluster=cluster) as producer:
        for number in range(10):
            producer.send(name, b"%d" % number, partition=0, timestamp_ms=1_000 * number)
    return name


def commit(cluster: InProcessCluster, group_id: str, offsets: dict[TopicPartition, int]) -> None:
    with Consumer(cluster=cluster, group_id=group_id) as consumer:
        consumer.commit(offsets)


def committed(admin: Admin, group_id: str) -> dict[TopicPartition, int]:
    return {each.topic_partition: each.offset for each in admin.group_offsets(group_id)}


# ---- Groups ----


def test_groups_of_all_coordinators_are_listed(
    cluster: InProcessCluster, admin: Admin, topic: str
) -> None:  # E1
    names = [f"listed-{each}" for each in range(6)]  # over three partitions, which two brokers lead
    for name in names:
        commit(cluster, name, {TopicPartition(topic, 0): 1})
    found = [each for each in admin.list_groups() if each.group_id in names]
    assert found == [GroupListing(each, "", GroupState.EMPTY) for each in names]
    assert [each for each in admin.list_groups(["Stable"]) if each.group_id in names] == []
    with pytest.raises(ValueError, match=r"expected some of 'Empty', .* found 'Idle'"):
        admin.list_groups(["Idle"])


def test_a_group_is_described_with_what_each_member_reads(cluster, admin, topic):
    with Consumer(topic, cluster=cluster, group_id="described", client_id="me") as consumer:
        wait_until(lambda: consumer.poll(timeout_ms=50) is not None and bool(consumer.assignment()))
        found = admin.describe_group("described")
        assert (found.state, found.protocol_type, found.protocol_name) == (
            GroupState.STABLE,
            "consumer",
            "range",
        )
        assert found.coordinator_id in (1, 2)
        (member,) = found.members
        assert member.assignment == (TopicPartition(topic, 0), TopicPartition(topic, 1))
        assert member.client_id == "me"
        assert json.loads(json.dumps(found.to_dict()))["members"][0]["assignment"] == [
            {"topic": topic, "partition": 0},
            {"topic": topic, "partition": 1},
        ]
    assert admin.describe_group("described").state is GroupState.EMPTY


def test_a_group_that_is_not_known_is_an_error(admin):
    with pytest.raises(GroupIdNotFound, match="has no group 'nowhere'; `rayka group list`"):
        admin.describe_group("nowhere")
    with pytest.raises(GroupIdNotFound):
        admin.delete_group("nowhere")
    with pytest.raises(InvalidGroupId):
        admin.describe_group("")
    assert admin.group_offsets("nowhere") == []


def test_a_group_is_deleted_once_it_has_no_members(cluster, admin, topic):
    with Consumer(topic, cluster=cluster, group_id="deleted") as consumer:
        wait_until(lambda: consumer.poll(timeout_ms=50) is not None and bool(consumer.assignment()))
        consumer.commit()
        with pytest.raises(NonEmptyGroup, match="group 'deleted'"):
            admin.delete_group("deleted")
    assert committed(admin, "deleted")
    admin.delete_group("deleted")
    assert committed(admin, "deleted") == {}
    assert "deleted" not in [each.group_id for each in admin.list_groups()]


def test_a_delete_whose_answer_was_lost_is_done(cluster, admin, topic):
    commit(cluster, "lost", {TopicPartition(topic, 0): 1})
    cluster.fail_calls("delete_groups", is_executed=True)
    admin.delete_group("lost")
    with pytest.raises(GroupIdNotFound):
        admin.describe_group("lost")


# ---- Offsets ----


def test_offsets_come_with_how_far_the_group_is_behind(cluster, admin, topic):
    tp, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    commit(cluster, "behind", {tp: 4, empty: 0})
    found = admin.group_offsets("behind")
    assert found == [GroupOffset(tp, 4, NO_EPOCH, "", 10, 6), GroupOffset(empty, 0, NO_EPOCH, "", 0, 0)]
    assert found[0].to_dict()["lag"] == 6


def test_offsets_of_a_former_topic_of_the_name_are_not_shown_nor_shifted(cluster, admin, topic):
    """A consumer that has not learned of the new topic yet commits of the former one."""
    tp, other = TopicPartition(topic, 0), TopicPartition(f"{topic}-other", 0)
    admin.create_topic(other.topic, partitions=1)
    with Consumer(cluster=cluster, group_id="former") as reader:
        reader.assign([tp])
        reader.seek(tp, 4)
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=1)
        reader.commit()
    commit(cluster, "former", {other: 0})
    assert committed(admin, "former") == {other: 0}
    assert admin.reset_group_offsets("former", to="earliest") == [OffsetReset(other, 0, 0)]
    with pytest.raises(InvalidRequest, match="no committed offset to shift"):
        admin.reset_group_offsets("former", shift_by=1, scope=[tp])


def test_offsets_of_a_topic_that_is_gone_are_not_shown(cluster, admin, topic):
    tp = TopicPartition(topic, 0)
    with Consumer(cluster=cluster, group_id="gone") as reader:
        reader.assign([tp])
        reader.seek(tp, 4)
        admin.delete_topic(topic)
        reader.commit()
    assert committed(admin, "gone") == {}


@pytest.mark.parametrize(
    ("aim", "expected"),
    [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, 10),
        ({"to": 7}, 7),
        ({"to": 70}, 10),
        ({"timestamp": 3_500}, 4),
        ({"timestamp": datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)}, 9),
        ({"timestamp": 50_000}, 10),
        ({"shift_by": 2}, 7),
        ({"shift_by": -3}, 2),
        ({"shift_by": -300}, 0),
    ],
)
def test_offsets_are_reset(cluster, admin, topic, aim: dict[str, Any], expected: int):
    tp, group_id = TopicPartition(topic, 0), f"reset-{topic}"
    commit(cluster, group_id, {tp: 5})
    reset = [OffsetReset(tp, 5, expected)]
    assert admin.reset_group_offsets(group_id, **aim, dry_run=True) == reset
    assert committed(admin, group_id) == {tp: 5}
    assert admin.reset_group_offsets(group_id, **aim) == reset
    assert committed(admin, group_id) == {tp: expected}


def test_a_reset_names_topics_and_partitions(cluster, admin, topic):
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    resets = admin.reset_group_offsets("scoped", to="latest", scope=[topic])
    assert resets == [OffsetReset(tp, None, 10), OffsetReset(other, None, 0)]
    assert admin.reset_group_offsets("scoped", to={tp: 3}) == [OffsetReset(tp, 10, 3)]
    assert admin.reset_group_offsets("scoped", to=1, scope=[tp]) == [OffsetReset(tp, 3, 1)]
    assert committed(admin, "scoped") == {tp: 1, other: 0}


def test_a_group_with_members_is_not_reset(
    cluster: InProcessCluster, admin: Admin, topic: str
) -> None:  # E10
    with Consumer(topic, cluster=cluster, group_id="busy") as consumer:
        wait_until(lambda: consumer.poll(timeout_ms=50) is not None and bool(consumer.assignment()))
        for dry_run in (True, False):
            with pytest.raises(
                NonEmptyGroup, match=r"group 'busy' of cluster 'testing' has 1 members .state Stable"
            ):
                admin.reset_group_offsets("busy", to="earliest", scope=[topic], dry_run=dry_run)


def test_a_reset_that_cannot_be_says_why(cluster, admin, topic):
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    commit(cluster, "refused", {tp: 5})
    with pytest.raises(ValueError, match="expected one of to, timestamp and shift_by, found 0"):
        admin.reset_group_offsets("refused")
    with pytest.raises(ValueError, match="found 2"):
        admin.reset_group_offsets("refused", to="latest", shift_by=1)
    with pytest.raises(
        ValueError, match="expected 'earliest', 'latest', an offset or offsets, found 'first'"
    ):
        admin.reset_group_offsets("refused", to="first")
    with pytest.raises(InvalidRequest, match=f"{other} has no committed offset to shift"):
        admin.reset_group_offsets("refused", shift_by=1, scope=[topic])
    expected = (
        f"{other}: expected an offset in `to`, found none; name one, or leave the partition out of `scope`"
    )
    with pytest.raises(InvalidRequest, match=expected):
        admin.reset_group_offsets("refused", to={tp: 1}, scope=[topic])
    with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 1, found 7"):
        admin.reset_group_offsets("refused", to=1, scope=[TopicPartition(topic, 7)])
    with pytest.raises(GroupIdNotFound):
        admin.reset_group_offsets("nowhere", to="latest")
    assert committed(admin, "refused") == {tp: 5}


# ---- The command line ----


@pytest.fixture
def rayka_group(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Runs `rayka group` with this cluster; returns what it printed."""
    monkeypatch.setattr(Target, "cluster", lambda self: cluster)

    def run(*arguments: str) -> str:
        group_commands.group.main(list(arguments), standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_the_commands_print_tables_and_json(cluster, admin, topic, rayka_group):
    tp = TopicPartition(topic, 0)
    with Consumer(topic, cluster=cluster, group_id="printed", auto_offset_reset="earliest") as consumer:
        wait_until(lambda: bool(consumer.poll(timeout_ms=50)) and consumer.position(tp) == 10)
        consumer.commit({tp: 4})
        described = rayka_group("describe", "printed")
        (member,) = admin.describe_group("printed").members
    assert described.startswith("group printed: Stable, 1 member, generation 1, assignor range, coordinator ")
    assert f"{topic}  0          4       10   6    {member.member_id}" in described
    assert "printed " in rayka_group("list", "--state", "Empty")
    listed = json.loads(rayka_group("list", "--state", "Empty", "--json"))
    assert [each["state"] for each in listed if each["group_id"] == "printed"] == ["Empty"]
    plain = json.loads(rayka_group("describe", "printed", "--json"))
    assert (plain["state"], plain["offsets"][0]["topic"]) == ("Empty", topic)
    assert "deleted" in rayka_group("delete", "printed", "--yes")


def test_a_reset_is_only_shown_unless_it_is_to_be_executed(cluster, admin, topic, rayka_group):
    tp = TopicPartition(topic, 0)
    commit(cluster, "shown", {tp: 4})
    shown = rayka_group("reset-offsets", "shown", "--shift-by", "-1")
    assert shown.endswith(f"{topic}  0          4       3\nnothing was changed; add --execute to do it\n")
    assert committed(admin, "shown") == {tp: 4}
    reset = json.loads(rayka_group("reset-offsets", "shown", "--to-time", "@7000", "--execute", "--json"))
    assert reset == {
        "executed": True,
        "offsets": [{"topic": topic, "partition": 0, "former_offset": 4, "offset": 7}],
    }
    assert committed(admin, "shown") == {tp: 7}
    rayka_group("reset-offsets", "shown", "--to-latest", "--topic", f"{topic}:1", "--execute")
    assert committed(admin, "shown") == {tp: 7, TopicPartition(topic, 1): 0}


def test_records_are_printed_for_a_group_and_committed(cluster, admin, topic, monkeypatch, capfd):
    monkeypatch.setattr(Target, "cluster", lambda self: cluster)

    def printed(*arguments: str) -> list[str]:
        command = consume_command.consume
        command.main([topic, "--group", "shell", *arguments], standalone_mode=False)
        return list(capfd.readouterr().out.splitlines())

    assert printed("--count", "3") == ["0", "1", "2"]
    assert committed(admin, "shell")[TopicPartition(topic, 0)] == 3
    assert printed("--exit") == ["3", "4", "5", "6", "7", "8", "9"]
    assert printed("--exit", "--partition", "0") == []
    with pytest.raises(click.BadParameter, match="expected beginning or end with --group, found '-5'"):
        printed("--from", "-5")


def test_a_member_that_has_no_partition_has_read_all_it_is_to(cluster, topic, monkeypatch, capfd):
    monkeypatch.setattr(Target, "cluster", lambda self: cluster)
    assigned: dict[str, list[TopicPartition]] = {}
    ended = threading.Event()

    def share(client_id: str) -> None:
        with Consumer(topic, cluster=cluster, group_id="crowd", client_id=client_id) as consumer:
            while not ended.is_set():
                consumer.poll(100)
                assigned[client_id] = consumer.assignment()

    others = [threading.Thread(target=share, args=(name,)) for name in ("a", "b")]  # ids by which range sorts
    for each in others:
        each.start()
    try:
        wait_until(lambda: [len(each) for each in assigned.values()] == [1, 1])
        command = consume_command.consume
        command.main([topic, "--group", "crowd", "--exit", "-X", "client_id=z"], standalone_mode=False)
    finally:
        ended.set()
        for each in others:
            each.join()
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((), "expected one of --to-earliest, --to-latest, --to-offset, --to-time and --shift-by, found 0"),
        (("--to-latest", "--shift-by", "2"), "found 2"),
        (("--to-time", "soon"), "expected a time since 1970 as 2026-01-31T12:00, or @MS; found 'soon'"),
        (("--to-latest", "--topic", "orders:x"), "expected TOPIC or TOPIC:0,1, found 'orders:x'"),
    ],
)
def test_a_reset_that_says_too_little_or_too_much_is_refused(
    given: tuple[str, ...], problem: str, rayka_group
):
    with pytest.raises(click.UsageError, match=problem):
        rayka_group("reset-offsets", "g", *given)
