"""Configurations of topics and brokers, described and changed while the cluster runs."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rayka
from rayka.config.broker_config import BROKER_KEYS, BrokerConfig
from rayka.controller.configuration_control import unheeded_min_isr
from rayka.errors import ErrorCode
from rayka.metadata.metadata_records import (
    ELIGIBLE_LEADER_REPLICAS,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
)
from rayka.protocol.configs import (
    AlterConfigOp,
    AlterConfigsResult,
    AlteredResource,
    ConfigChange,
    ConfigEntry,
    ConfigResourceName,
    ConfigSource,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.load import LoadReport
from rayka.protocol.membership import LeaderRecoveryState
from tests.controller.admin_support import cluster, create, fence
from tests.controller.support import Machine

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
MIN_ISR, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


@pytest.fixture
def machine() -> Machine:
    """Three brokers and a topic on all of them."""
    machine = cluster(3, BrokerConfig(num_partitions=7, log_segment_bytes=2000))
    create(machine, (1, 2, 3))
    return machine


def changes(values: dict[str, str | None]) -> tuple[ConfigChange, ...]:
    """None deletes."""
    return tuple(
        ConfigChange(key, AlterConfigOp.DELETE)
        if value is None
        else ConfigChange(key, AlterConfigOp.SET, value)
        for key, value in values.items()
    )


def request(kind: ResourceType, name: str, values: dict[str, str | None]) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest((AlteredResource(kind, name, changes(values)),))


def alter(machine: Machine, kind: ResourceType, name: str, **values: str | None) -> AlterConfigsResult:
    """Keys in snake_case."""
    dotted: dict[str, str | None] = {key.replace("_", "."): value for key, value in values.items()}
    (result,) = machine.handle(request(kind, name, dotted)).resources
    assert bool(result.error_message) == (result.error_code is not ErrorCode.NONE)
    found: AlterConfigsResult = result
    return found


def describe(machine: Machine, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    (described,) = machine.handle(DescribeConfigsRequest((ConfigResourceName(kind, name),))).resources
    assert described.error_code is ErrorCode.NONE, described.error_message
    return {entry.name: entry for entry in described.entries}


# ---- Changing --------------------------------------------------------------------------------------------------------


def test_what_is_set_is_the_topics_own_and_what_is_deleted_is_not(machine: Machine) -> None:
    alter(machine, TOPIC, "orders", segment_bytes="3000", flush="batch")
    assert machine.image.topic_configs("orders") == {"flush": "batch", "segment.bytes": "3000"}
    alter(machine, TOPIC, "orders", segment_bytes=None, segment_ms="5")
    assert machine.image.topic_configs("orders") == {"flush": "batch", "segment.ms": "5"}


def test_only_what_changes_is_written(machine: Machine) -> None:
    alter(machine, TOPIC, "orders", segment_bytes="3000")
    again = request(TOPIC, "orders", {"segment.bytes": "3000", "segment.ms": None, "flush": "batch"})
    assert machine.written_by(again) == [
        ConfigRecord(resource_type=TOPIC, resource_name="orders", name="flush", value="batch")
    ]


def test_a_key_may_be_written_in_snake_case_and_a_value_in_any_way_that_is_understood(
    machine: Machine,
) -> None:
    machine.handle(request(TOPIC, "orders", {"unclean_leader_election_enable": "True"}))
    assert machine.image.topic_configs("orders") == {UNCLEAN: "true"}


@pytest.mark.parametrize(
    ("kind", "name", "values", "message"),
    [
        (
            TOPIC,
            "orders",
            {"segment.byte": "3000"},
            "'orders': unknown key 'segment.byte'; .* is 'segment.bytes'",
        ),
        (
            TOPIC,
            "orders",
            {"segment.byte": None},
            "'orders': unknown key 'segment.byte'; .* is 'segment.bytes'",
        ),
        (TOPIC, "orders", {"segment.bytes": "few"}, "'orders': segment.bytes: .* integer.*, found 'few'"),
        (TOPIC, "orders", {"segment.bytes": "1"}, "'orders': segment.bytes: .* 1024, found '1'"),
        (
            TOPIC,
            "orders",
            {"leader.replication.throttled.replicas": "0"},
            r"expected '\*', or a list .* found '0'",
        ),
        (
            BROKER,
            "1",
            {"log.segment.byte": "1"},
            "broker 1: unknown key 'log.segment.byte'; .* 'log.segment.bytes'",
        ),
        (BROKER, "", {"log.segment.bytes": "1"}, "all brokers: log.segment.bytes: .* 1024, found '1'"),
    ],
)
def test_a_key_or_value_that_cannot_be_is_named(
    machine: Machine, kind: ResourceType, name: str, values: dict[str, Any], message: str
) -> None:
    count = len(machine.records)
    (result,) = machine.handle(
        request(kind, name, {**values, "flush": "batch"} if kind is TOPIC else values)
    ).resources
    assert result.error_code is ErrorCode.INVALID_CONFIG
    assert re.search(message, result.error_message)
    assert len(machine.records) == count  # all changes of a resource are made or none


@pytest.mark.parametrize("replicas", ["*", "", "0:1", "0:1,1:2,10:3"])
def test_replicas_to_throttle_are_all_or_a_list(machine: Machine, replicas: str) -> None:  # B45
    result = alter(machine, TOPIC, "orders", follower_replication_throttled_replicas=replicas)
    assert result.error_code is ErrorCode.NONE


@pytest.mark.parametrize("name", ["", "1"])
@pytest.mark.parametrize("value", ["3", None])
def test_what_takes_effect_at_the_start_of_a_node_is_read_only(
    machine: Machine, name: str, value: str | None
) -> None:
    result = alter(machine, BROKER, name, num_partitions=value)
    assert (result.error_code, "set it in the cluster's specification" in result.error_message) == (
        ErrorCode.INVALID_REQUEST, True
    )  # fmt: skip


@pytest.mark.parametrize("key", [MIN_ISR, UNCLEAN])
def test_what_the_controller_goes_by_too_is_the_same_on_all_brokers(machine: Machine, key: str) -> None:
    (result,) = machine.handle(request(BROKER, "1", {key: "1"})).resources
    assert result.error_code is ErrorCode.INVALID_REQUEST
    (result,) = machine.handle(request(BROKER, "", {key: "1"})).resources
    assert result.error_code is ErrorCode.NONE


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "9", ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER, "-1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_not_there_is_refused_and_the_others_go_on(
    machine: Machine, kind: ResourceType, name: str, code: ErrorCode
) -> None:
    resources = (
        AlteredResource(kind, name, ()),
        AlteredResource(TOPIC, "orders", changes({"flush": "batch"})),
    )
    response = machine.handle(IncrementalAlterConfigsRequest(resources))
    assert [each.error_code for each in response.resources] == [code, ErrorCode.NONE]
    assert response.metadata_offset == len(machine.records)
    assert machine.image.topic_configs("orders") == {"flush": "batch"}
    described = machine.handle(DescribeConfigsRequest((ConfigResourceName(kind, name),))).resources
    assert [(each.resource_type, each.resource_name, each.error_code) for each in described] == [
        (kind, name, code)
    ]


def test_only_the_supervisor_says_that_a_broker_goes_and_everyone_that_it_stays(machine: Machine) -> None:
    for name in ("2", ""):
        refused = alter(machine, BROKER, name, scaling_leaving="true")
        assert refused.error_code is ErrorCode.INVALID_REQUEST
        assert "set by the cluster, of a broker that goes by the load" in refused.error_message
    scaling = msgspec.structs.replace(request(BROKER, "2", {"scaling.leaving": "true"}), is_scaling=True)
    assert machine.handle(scaling).resources[0].error_code is ErrorCode.NONE
    assert machine.image.broker_configs(2) == {"scaling.leaving": "true"}
    all_brokers = msgspec.structs.replace(request(BROKER, "", {"scaling.leaving": "true"}), is_scaling=True)
    assert machine.handle(all_brokers).resources[0].error_code is ErrorCode.INVALID_REQUEST
    assert alter(machine, BROKER, "2", scaling_leaving=None).error_code is ErrorCode.NONE
    assert machine.image.broker_configs(2) == {}


def test_a_specification_whose_min_isr_is_not_in_force_is_told_what_is() -> None:
    image = cluster(3, BrokerConfig(min_insync_replicas=2)).image
    assert unheeded_min_isr(image, BrokerConfig()) == ""  # it says nothing of it
    assert unheeded_min_isr(image, BrokerConfig(min_insync_replicas=2)) == ""
    assert unheeded_min_isr(image, BrokerConfig(min_insync_replicas=3)) == (
        "the specification says min.insync.replicas 3, which counts when a cluster is created; in force is 2: set it"
        " for all brokers to change it"
    )


# ---- What follows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "orders"), (BROKER, "")])
def test_another_min_isr_makes_eligible_leaders_forgotten_first(
    machine: Machine, kind: ResourceType, name: str
) -> None:  # B42
    alter(machine, BROKER, "", min_insync_replicas="2")
    fence(machine, 2, 3)
    assert machine.partition().eligible_leader_replicas == (
        2,
    ) or machine.partition().eligible_leader_replicas == (3,)
    value = "1"
    assert machine.written_by(request(kind, name, {MIN_ISR: value})) == [
        ClearElrRecord(topic_name=name),
        ConfigRecord(resource_type=kind, resource_name=name, name=MIN_ISR, value=value),
    ]
    assert machine.partition().eligible_leader_replicas == ()


def test_another_key_makes_nothing_forgotten(machine: Machine) -> None:
    written = machine.written_by(request(TOPIC, "orders", {MIN_ISR: None, "flush": "batch"}))
    assert [type(each) for each in written] == [ConfigRecord]


def test_a_new_cluster_has_the_min_isr_of_its_specification_in_its_log() -> None:  # B42
    first = Machine(BrokerConfig(min_insync_replicas=2))
    assert dict(first.image.broker_configs(None)) == {MIN_ISR: "2"}
    again = Machine(BrokerConfig(min_insync_replicas=1), first.records)
    again.start(1)
    entry = describe(again, BROKER, "1")[MIN_ISR]
    assert (entry.value, entry.source) == ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER)


def test_with_eligible_leaders_the_min_isr_stays_in_the_log(machine: Machine) -> None:  # B42
    assert alter(machine, BROKER, "", min_insync_replicas=None).error_code is ErrorCode.INVALID_REQUEST
    machine = Machine(records=[*machine.records, FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS, level=0)])
    assert alter(machine, BROKER, "", min_insync_replicas=None).error_code is ErrorCode.NONE


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "orders"), (BROKER, "")])
def test_where_unclean_elections_become_allowed_a_replica_leads_at_once(
    machine: Machine, kind: ResourceType, name: str
) -> None:  # B40, B41
    create(machine, (1, 2, 3), name="strict", configs={UNCLEAN: "false"})
    fence(machine, 3)
    fence(machine, 1, 2)
    machine.heartbeat(3)
    assert not machine.partition().has_leader
    response = machine.handle(request(kind, name, {UNCLEAN: "true"}))
    partition = machine.partition()
    assert (partition.leader_id, partition.isr) == (3, (3,))
    assert partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
    assert not machine.partition("strict").has_leader
    assert response.metadata_offset == len(machine.records)


def test_where_unclean_elections_are_not_allowed_no_replica_leads(machine: Machine) -> None:
    fence(machine, 3, 2, 1)
    machine.heartbeat(3)
    written = machine.written_by(request(TOPIC, "orders", {UNCLEAN: "false"}))
    assert not any(isinstance(each, PartitionChangeRecord) for each in written)


# ---- Describing ------------------------------------------------------------------------------------------------------


def source_of(machine: Machine, kind: ResourceType, name: str, key: str) -> tuple[str, ConfigSource]:
    entry = describe(machine, kind, name)[key]
    return entry.value, entry.source


def test_a_topics_value_is_its_own_or_that_of_all_brokers_or_the_nodes_or_the_default(
    machine: Machine,
) -> None:
    key = "segment.bytes"
    assert source_of(machine, TOPIC, "orders", key) == ("2000", ConfigSource.STATIC_BROKER)
    alter(machine, BROKER, "", log_segment_bytes="3000")
    assert source_of(machine, TOPIC, "orders", key) == ("3000", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    alter(machine, TOPIC, "orders", segment_bytes="4000")
    assert source_of(machine, TOPIC, "orders", key) == ("4000", ConfigSource.DYNAMIC_TOPIC)
    assert source_of(machine, TOPIC, "orders", "segment.ms") == ("604800000", ConfigSource.DEFAULT)
    assert source_of(machine, TOPIC, "orders", "flush") == ("none", ConfigSource.DEFAULT)


def test_a_brokers_value_is_its_own_or_that_of_all_brokers_or_the_nodes_or_the_default(
    machine: Machine,
) -> None:
    key = "log.segment.bytes"
    assert source_of(machine, BROKER, "1", key) == ("2000", ConfigSource.STATIC_BROKER)
    alter(machine, BROKER, "", log_segment_bytes="3000")
    alter(machine, BROKER, "1", log_segment_bytes="4000")
    assert source_of(machine, BROKER, "1", key) == ("4000", ConfigSource.DYNAMIC_BROKER)
    assert source_of(machine, BROKER, "2", key) == ("3000", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert source_of(machine, BROKER, "", key) == ("3000", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert source_of(machine, BROKER, "1", "log.roll.ms") == ("604800000", ConfigSource.DEFAULT)


def test_a_broker_says_which_keys_can_be_set_while_it_runs(machine: Machine) -> None:
    entries = describe(machine, BROKER, "1")
    assert (entries["num.partitions"].value, entries["num.partitions"].is_read_only) == ("7", True)
    assert not entries["leader.replication.throttled.rate"].is_read_only
    assert not any(each.is_read_only for each in describe(machine, TOPIC, "orders").values())


# ---- What only brokers read ------------------------------------------------------------------------------------------


def described(machine: Machine, kind: ResourceType, name: str, key: str) -> tuple[str, ConfigSource]:
    asked = DescribeConfigsRequest((ConfigResourceName(kind, name),))
    (found,) = machine.handle(asked).resources
    (entry,) = [each for each in found.entries if each.name == key]
    return entry.value, entry.source


def test_what_only_brokers_read_is_described_as_brokers_were_started(machine: Machine) -> None:
    """A controller is not started again for it, so its own may be an earlier one."""
    key = "log.cleaner.backoff.ms"
    assert described(machine, BROKER, "2", key) == ("15000", ConfigSource.DEFAULT)
    settings = {"log.segment.bytes": "3000", key: "70", "num.partitions": "9"}
    machine.heartbeat(2, load=LoadReport(1_000), started_with=settings)
    assert described(machine, BROKER, "2", key) == ("70", ConfigSource.STATIC_BROKER)
    assert described(machine, BROKER, "1", key) == ("15000", ConfigSource.DEFAULT)
    assert described(machine, TOPIC, "orders", "segment.bytes") == ("3000", ConfigSource.STATIC_BROKER)
    assert described(machine, BROKER, "", "log.segment.bytes") == ("3000", ConfigSource.STATIC_BROKER)


def test_what_controllers_read_is_described_as_they_were_started(machine: Machine) -> None:
    machine.heartbeat(1, load=LoadReport(1_000), started_with={"num.partitions": "9"})
    assert described(machine, BROKER, "1", "num.partitions") == ("7", ConfigSource.STATIC_BROKER)


def test_settings_of_another_release_change_nothing_that_is_described(machine: Machine) -> None:
    settings = {"log.segment.bytes": "few", "a.later.key": "1"}
    machine.heartbeat(1, load=LoadReport(1_000), started_with=settings)
    assert described(machine, BROKER, "1", "log.segment.bytes") == ("2000", ConfigSource.STATIC_BROKER)


def test_no_controller_reads_what_only_brokers_read() -> None:
    """Or it would go by an earlier value, for a change of these keys does not start it again."""
    package = Path(rayka.__file__).parent
    places = ("controller", "raft", "node/quorum", "node/hosting", "node/controller_node.py", "node/inbox.py")
    paths = [
        path
        for each in places
        for path in (package / each, *(package / each).rglob("*.py"))
        if path.is_file()
    ]
    assert len(paths) > 50
    read = {
        key: path.name
        for path in paths
        for key in re.findall(r"\.(\w+)", path.read_text())
        if key in BROKER_KEYS
    }
    assert not read
