"""What people write is checked where it enters: a wrong key or value is a ConfigError that names it."""

from pathlib import Path
from typing import Any, get_args

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.config.client_config import AdminConfig, ConsumerConfig, ProducerConfig, WorkersConfig
from rayka.config.cluster_config import ClusterSpec, CountRange, RoleResources, Scaling
from rayka.config.topic_config import TopicConfig
from rayka.errors import ConfigError
from rayka.ids import Role

ALL_KINDS = (
    AdminConfig, BrokerConfig, ConsumerConfig, ProducerConfig, RoleResources, Scaling, TopicConfig, WorkersConfig,
)  # fmt: skip


def test_a_key_may_be_dotted_or_snake_case():
    assert ProducerConfig.given({"linger.ms": 7}, {"acks": 1}, what="producer") == ProducerConfig(
        linger_ms=7, acks=1
    )


@pytest.mark.parametrize("spelled", ["linger.ms", "linger_ms"])
def test_a_wrong_value_is_named_as_its_key_was_written(spelled: str):
    with pytest.raises(ConfigError, match=rf"^producer: {spelled}: .* found 'soon'"):
        ProducerConfig.given({spelled: "soon"}, {}, what="producer")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (TopicConfig, "retention.ms", True),
        (TopicConfig, "min.cleanable.dirty.ratio", False),
        (BrokerConfig, "log.retention.ms", True),
        (ProducerConfig, "linger.ms", True),
        (ConsumerConfig, "max.poll.records", True),
    ],
)
def test_true_and_false_are_no_numbers(kind: Any, key: str, value: bool):
    with pytest.raises(ConfigError, match=rf"^config: {key}: expected a number, found {value}$"):
        kind.parse({key: value}, what="config")


@pytest.mark.parametrize("kind", [TopicConfig, BrokerConfig, ProducerConfig, ConsumerConfig, AdminConfig])
def test_no_number_is_larger_than_kafkas_largest(kind: Any):
    limitless = [
        name
        for name, field in kind.model_fields.items()
        if field.annotation in (int, int | None) and not any(hasattr(each, "le") for each in field.metadata)
    ]
    assert limitless
    for name in limitless:
        for too_large in (2**63, str(10**400)):
            with pytest.raises(
                ConfigError, match=rf"^config: {name}: expected at most 9223372036854775807, found"
            ):
                kind.parse({name: too_large}, what="config")


def numbers(kind: Any) -> list[tuple[str, Any]]:
    fields = kind.model_fields.items()
    return [
        (name, field)
        for name, field in fields
        if {int, float} & {field.annotation, *get_args(field.annotation)}
    ]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_rate_and_size_has_a_least_value_that_is_within(kind: Any):
    """A bound that is not within ("more than 0") lets numbers through with which no time is finite."""
    for name, field in numbers(kind):
        if name.endswith(("_bytes", "_size", "_rate", "_per_second", "_memory")):
            assert any(getattr(each, "ge", None) is not None for each in field.metadata), name


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("value", ["nan", "inf", "1e300"])
def test_no_number_is_endless(kind: Any, value: str):
    for name, field in numbers(kind):
        if float in {field.annotation, *get_args(field.annotation)}:
            with pytest.raises(ConfigError, match=rf"^config: {name}: "):
                kind.parse({name: value}, what="config")


@pytest.mark.parametrize(
    "key", ["log.cleaner.io.max.bytes.per.second", "replica.alter.log.dirs.io.max.bytes.per.second"]
)
@pytest.mark.parametrize("rate", ["1e-310", "0.5", "0", "-1"])
def test_a_rate_of_less_than_one_byte_is_refused(key: str, rate: str):
    with pytest.raises(
        ConfigError, match=rf"{key}: Input should be greater than or equal to 1, found '{rate}'"
    ):
        BrokerConfig.parse({key: rate}, what="config")


@pytest.mark.parametrize(
    ("given", "kept_ms"),
    [
        ({"log.retention.hours": 2}, 7_200_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, 180_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3, "log.retention.ms": 4}, 4),
        ({"log.retention.hours": -1}, -1),
        ({}, 604_800_000),
    ],
)
def test_of_a_brokers_retention_times_the_finest_unit_counts(given: dict[str, int], kept_ms: int):  # F11
    broker = BrokerConfig.parse(given, what="broker config")
    assert broker.topic_config({}).retention_ms == kept_ms
    assert broker.topic_config({"retention.ms": "5"}).retention_ms == 5


def test_a_key_given_twice_is_refused():
    with pytest.raises(ConfigError, match="'linger_ms' is given twice"):
        ProducerConfig.given({"linger.ms": 5}, {"linger_ms": 5}, what="producer")


@pytest.mark.parametrize("given", [None, "none"])
@pytest.mark.parametrize("spelled", ["compression.type", "compression_type"])
def test_no_compression_may_be_written_as_none(spelled: str, given: str | None):
    assert ProducerConfig.given({spelled: given}, {}, what="producer").compression_type == "none"
    assert ProducerConfig.given(None, {spelled: given}, what="producer").compression_type == "none"


@pytest.mark.parametrize("kind", [AdminConfig, ProducerConfig, ConsumerConfig])
def test_what_is_no_mapping_is_refused(kind: Any):
    with pytest.raises(ConfigError, match="config: expected a mapping, found int"):
        kind.given(5, {}, what="client")


def test_topic_configs_are_a_mapping():
    with pytest.raises(ConfigError, match="expected a mapping of keys to values, found str"):
        TopicConfig.parse("flush", what="topic 'orders'")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "key"), [(ProducerConfig, "default_api_timeout_ms"), (ConsumerConfig, "group_protocol")]
)
def test_what_nothing_uses_is_no_key(kind: Any, key: str):
    with pytest.raises(ConfigError, match=f"unknown key '{key}'"):
        kind.given(None, {key: 1}, what="client")


@pytest.mark.parametrize(
    ("kind", "key", "said"),
    [
        (ProducerConfig, "transactional.id", "no transactions"),
        (ConsumerConfig, "bootstrap_servers", "cluster='rayka'"),
    ],
)
def test_a_key_of_kafka_that_is_not_there_says_what_is_missing(kind: Any, key: str, said: str):
    with pytest.raises(ConfigError, match=f"unknown key '{key}'; .*{said}"):
        kind.parse({key: 1}, what="client")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": True}, "acks: expected 'all', 1 or 0, found True"),
        ({"acks": 2}, "acks: expected 'all', 1 or 0, found 2"),
        ({"acks": None}, "acks: expected 'all', 1 or 0, found None"),
        ({"acks": "sometimes"}, "acks: expected 'all', 1 or 0, found 'sometimes'"),
        ({"linger_ms": float("inf")}, "linger_ms: .*finite"),
        (
            {"linger_ms": 100, "delivery_timeout_ms": 100},
            "delivery_timeout_ms: expected more than linger_ms=100",
        ),
        ({"linger_ms": 200_000}, "delivery_timeout_ms: expected more than linger_ms=200000"),
    ],
    ids=str,
)
def test_a_producer_option_that_cannot_work_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ProducerConfig.given(None, options, what="producer")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping such as 'name: rayka', found NoneType"),
        ("broker: 1", "unknown key 'broker'; the nearest known key is 'brokers'"),
        ("controllers: 0", "controllers: .* found 0"),
        ("brokers: 0", "brokers: .* found 0"),
        ("controllers: 2", "controllers: expected an odd number .*: 2 survive no more losses than 1"),
        (
            "nodes: [{id: 1, roles: [broker]}, {id: 3001, roles: [controller]}, {id: 3002, roles: [controller]}]",
            "nodes: expected an odd number of controllers",
        ),
        (
            "{brokers: 2, config: {default.replication.factor: 3}}",
            "config: expected a default.replication.factor of 2 at most, .*, found 3$",
        ),
        (
            "{nodes: [{id: 1, roles: [broker, controller]}], config: {default.replication.factor: 2}}",
            "config: expected a default.replication.factor of 1 at most, .*, found 2$",
        ),
        ("{brokers: 3, nodes: [{id: 1, roles: [broker, controller]}]}", "either nodes or the counts"),
        ("nodes: [{id: 1, roles: [broker]}]", "nodes: expected at least one controller"),
        ("nodes: [{id: 3001, roles: [controller]}]", "nodes: expected at least one broker"),
        ("coordinators: -1", "coordinators: .* found -1"),
        (
            "nodes: [{id: 1, roles: [broker, manager]}]",
            "nodes.0.roles.1: .* 'broker', 'coordinator' or 'controller'",
        ),
        ("nodes: [{id: 1001, roles: [coordinator, controller]}]", "nodes: expected at least one broker"),
        (
            "nodes: [{id: 1001, roles: [broker, coordinator]}]",
            "nodes.0.roles: node 1001 has the id of a coordinator; .* the first of these roles",
        ),
        ("nodes: [{id: 1, roles: [broker, broker]}]", "nodes.0.roles: expected each role once"),
        (
            "nodes: [{id: 3001, roles: [controller, broker]}]",
            "nodes.0.roles: node 3001 has the id of a controller",
        ),
        ("nodes: [{id: 1, roles: [controller]}]", "nodes.0.roles: node 1 has the id of a broker"),
        (
            "nodes: [{id: 1, roles: [broker, controller]}, {id: 1, roles: [broker]}]",
            "nodes: expected each id once",
        ),
        (
            "nodes: [{id: 1, roles: [broker, controller]}, {id: 3001, roles: [controller]}]",
            "nodes: expected controllers that are all brokers or coordinators too, or none",
        ),
        ("name: ..", "name: "),
        ("name: a/b", "name: "),
        ("data_dir: []", "data_dir: expected a directory, or a list of different ones"),
        ("data_dir: ''", "data_dir: expected a directory, or a list of different ones"),
        ("data_dir: [a, a]", "data_dir: expected a directory, or a list of different ones"),
        ("data_dir: [a, ./a]", "data_dir: expected a directory, or a list of different ones"),
        ("data_dir: [~/a, ~/a/]", "data_dir: expected a directory, or a list of different ones"),
        (
            "resources: {brokr: {num_cpus: 1}}",
            "resources: unknown key 'brokr'; the nearest known key is 'broker', found",
        ),
        (
            "resources: {broker: {num_cpu: 1}}",
            "resources.broker: unknown key 'num_cpu'; the nearest known key is 'num_cpus', found",
        ),
        (
            "nodes: [{id: 1, role: [broker, controller]}]",
            "nodes.0: unknown key 'role'; the nearest known key is 'roles', found",
        ),
        ("resources: {broker: {num_cpus: 1, num.cpus: 2}}", "resources.broker: expected each key once"),
        ("resources: {broker: {resources: {disk: -1}}}", "resources.broker.resources.disk: .* found -1"),
        ("resources: {broker: {resources: {disk: .nan}}}", "resources.broker.resources.disk: .* found nan"),
        ("ray: {adress: auto}", "ray: unknown key 'adress'; the nearest known key is 'address'"),
        ("resources: {broker: {num_cpus: 0}}", "resources.broker.num_cpus: .* greater than 0, found 0"),
        (
            "config: {num.partitons: 3}",
            "config: unknown key 'num.partitons'; the nearest known key is 'num.partitions'",
        ),
        ("brokers: 0", "brokers: expected a count from 1 to 1000, or min and max, found 0"),
        ("brokers: {min: 5, max: 3}", "brokers: max: expected min, which is 5, or more, found 3"),
        ("brokers: {min: 0, max: 3}", "brokers: min: .* found 0"),
        ("brokers: {min: 3, mx: 5}", "brokers: unknown key 'mx'; the nearest known key is 'max'"),
        (
            "brokers: {min: 2, max: 9}\nconfig: {default.replication.factor: 3}",
            "config: expected a default.replication.factor of 2 at most, or more brokers than that, found 3",
        ),
        (
            "scaling: {bytes_in: 5}",
            "scaling: expected brokers: {min: …, max: …} beside it, or coordinators, found brokers 1 and",
        ),
        ("coordinators: -1", "coordinators: expected a count from 0 to 1000, or min and max, found -1"),
        ("coordinators: true", "coordinators: expected a count from 0 to 1000, or min and max"),
        ("coordinators: {min: 4, max: 2}", "coordinators: max: expected min, which is 4, or more, found 2"),
        ("coordinators: {min: 0, max: 2}", "coordinators: min: .* greater than or equal to 1, found 0"),
        (
            "{coordinators: {min: 1, max: 2}, scaling: {bytes_in: 5}}",
            "scaling: bytes_in: expected brokers: {min: …, max: …} beside it, found brokers 1, which never",
        ),
        (
            "{brokers: {min: 1, max: 2}, scaling: {coordinator_processor_share: 0.5}}",
            "scaling: coordinator_processor_share: expected coordinators: .* found coordinators 0, which never",
        ),
        (
            "{brokers: {min: 2, max: 9}, scaling: {bytes_inn: 5}}",
            "scaling: unknown key 'bytes_inn'; the nearest known key is 'bytes_in'",
        ),
        ("{brokers: {min: 2, max: 9}, scaling: {disk_share: 7}}", "scaling: disk_share: .* found 7"),
        (
            "{brokers: {min: 1, max: 9}, nodes: [{id: 1, roles: [broker, controller]}]}",
            "expected either nodes or the counts .*, found both",
        ),
        ("a: b: c", "not YAML"),
        ("name: 2026-02-31", "not YAML: day is out of range"),
        ("name: a\nbrokers: 2\nname: b", "the key 'name' is given twice; keep one"),
        ("config: {num.partitions: 3, num.partitions: 4}", "the key 'num.partitions' is given twice"),
        ("\udcff", "not YAML"),
    ],
    ids=str,
)
def test_a_wrong_specification_names_its_file_and_the_key(tmp_path: Path, text: str, message: str):
    path = tmp_path / "cluster.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=f"^{path}.*{message}"):
        ClusterSpec.load(path)


def test_a_node_may_have_several_roles_and_the_first_names_it(tmp_path: Path):
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{id: 2, roles: [broker]}, {id: 1, roles: [controller, broker]}]")
    assert ClusterSpec.load(path).roles == {1: (Role.BROKER, Role.CONTROLLER), 2: (Role.BROKER,)}
    path.write_text(
        "nodes: [{id: 1, roles: [coordinator, controller, broker]}, {id: 1001, roles: [controller, coordinator]},"
        " {id: 1002, roles: [coordinator, controller]}]"
    )
    assert ClusterSpec.load(path).roles == {
        1: (Role.BROKER, Role.COORDINATOR, Role.CONTROLLER),
        **dict.fromkeys((1001, 1002), (Role.COORDINATOR, Role.CONTROLLER)),
    }


def test_coordinators_have_ids_of_their_own():
    roles = ClusterSpec.of({"coordinators": 2}).roles
    assert roles == {
        1: (Role.BROKER,), 1001: (Role.COORDINATOR,), 1002: (Role.COORDINATOR,), 3001: (Role.CONTROLLER,)
    }  # fmt: skip


def test_counts_declare_nodes_of_one_role_each():
    roles = ClusterSpec(brokers=2, controllers=1).roles
    assert roles == {1: (Role.BROKER,), 2: (Role.BROKER,), 3001: (Role.CONTROLLER,)}


def test_a_range_of_brokers_declares_the_least(tmp_path: Path):
    path = tmp_path / "cluster.yaml"
    path.write_text("brokers: {min: 2, max: 9}\nscaling: {bytes_in: 5, never: [in]}\n")
    spec = ClusterSpec.load(path)
    assert list(spec.roles) == [1, 2, 3001]
    assert (spec.ranges, ClusterSpec(brokers=2).ranges) == ({Role.BROKER: CountRange(min=2, max=9)}, {})
    assert ClusterSpec.of(spec.model_dump(exclude_unset=True)) == spec


def test_a_range_of_coordinators_declares_the_least():
    spec = ClusterSpec.of(
        {"coordinators": {"min": 2, "max": 4}, "scaling": {"coordinator_processor_share": 0.5}}
    )
    assert list(spec.roles) == [1, 1001, 1002, 3001]
    assert spec.ranges == {Role.COORDINATOR: CountRange(min=2, max=4)}
    assert ClusterSpec.of(spec.model_dump(exclude_unset=True)) == spec


def test_a_data_directory_is_relative_to_where_the_specification_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    spec = ClusterSpec(data_dir=["data", "~/more", "/rest"])
    monkeypatch.chdir("/")
    assert spec.data_dirs == (str(tmp_path / "data"), str(Path.home() / "more"), "/rest")


# ---- Groups ----


@pytest.mark.parametrize("given", ["range", ["range"], ("range",)])
def test_an_assignor_is_named_alone_or_in_a_list(given: Any) -> None:
    parsed = ConsumerConfig.parse({"partition.assignment.strategy": given}, what="consumer")
    assert parsed.partition_assignment_strategy == ("range",)
    both = ConsumerConfig.parse({"partition_assignment_strategy": "sticky, range"}, what="consumer")
    assert both.partition_assignment_strategy == ("sticky", "range")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"group_id": ""}, "group_id: .* at least 1 character"),
        ({"group_instance_id": "a"}, "group_instance_id: expected with group_id only"),
        ({"enable_auto_commit": True}, "enable_auto_commit: expected with group_id only"),
        (
            {"heartbeat_interval_ms": 45_000},
            "heartbeat_interval_ms: expected less than session_timeout_ms=45000",
        ),
        ({"partition_assignment_strategy": []}, "partition_assignment_strategy: .* at least 1 item"),
        (
            {"partition_assignment_strategy": "stiky"},
            "partition_assignment_strategy.0: Input should be 'range'",
        ),
    ],
)
def test_what_a_group_cannot_be_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ConsumerConfig.parse(options, what="consumer")


def test_without_a_group_nothing_needs_to_be_said() -> None:
    assert ConsumerConfig.parse({"enable_auto_commit": False}, what="consumer").group_id is None


@pytest.mark.parametrize(
    ("given", "policy"),
    [("delete, compact", "compact,delete"), ("compact", "compact"), (" delete", "delete")],
)
def test_a_cleanup_policy_has_one_spelling(given: str, policy: str) -> None:
    config = TopicConfig.parse({"cleanup.policy": given}, what="topic config")
    assert (config.cleanup_policy, config.is_compacted) == (policy, "compact" in policy)
    assert config.overrides() == {"cleanup.policy": policy}


@pytest.mark.parametrize("given", ["", "compact;delete", "none", 3])
def test_a_cleanup_policy_that_kafka_does_not_know_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="expected 'delete', 'compact' or 'compact,delete'"):
        TopicConfig.parse({"cleanup.policy": given}, what="topic config")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"retention.ms": "3d"}, "retention.ms: expected a number of milliseconds without a unit, as 259200000, found"),
        ({"retention.ms": "1.5 h"}, "milliseconds without a unit, as 5400000, found '1.5 h'"),
        ({"retention_ms": "2 weeks"}, "milliseconds without a unit, found '2 weeks'"),
        ({"segment.bytes": "1GB"}, "bytes without a unit, as 1000000000, found '1GB'"),
        ({"segment.bytes": "64MiB"}, "bytes without a unit, as 67108864, found '64MiB'"),
        ({"min.insync.replicas": "2x"}, "expected a number without a unit, found '2x'"),
    ],
)  # fmt: skip
def test_a_number_with_a_unit_is_refused_with_the_number_that_was_meant(
    given: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        TopicConfig.parse(given, what="topic 'x'")
    assert says in str(refused.value)
