"""Topics created and deleted."""

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.controller.topic_control import PARTITIONS_MAX, TOPIC_NAME_LENGTH_MAX
from rayka.errors import BrokerIdNotRegistered, ErrorCode, StaleBrokerEpoch
from rayka.metadata.metadata_records import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    NewTopic,
    TopicResult,
)
from tests.controller.admin_support import cluster, create, fence
from tests.controller.support import Machine


@pytest.fixture
def machine() -> Machine:
    """One broker, running."""
    machine = Machine()
    machine.start(1)
    return machine


def error_of(machine: Machine, topic: NewTopic) -> ErrorCode:
    (result,) = machine.create(topic).topics
    assert (result.error_message == "") == (result.error_code is ErrorCode.NONE)
    return result.error_code


def test_a_topic_is_written_as_one_run_topic_configs_partitions(machine: Machine) -> None:
    request = CreateTopicsRequest((NewTopic("orders", 2, 1, {"segment.bytes": "2000", "flush": "batch"}),))
    written = machine.written_by(request)
    assert [type(record) for record in written] == [TopicRecord, *[ConfigRecord] * 2, *[PartitionRecord] * 2]
    assert repr(machine.partition(number=1)) == (
        "<PartitionImage leader=1 epoch=0 isr=[1] replicas=[1] partition_epoch=0>"
    )
    assert machine.image.topic_configs("orders") == {"segment.bytes": "2000", "flush": "batch"}


def test_the_response_says_from_which_offset_on_brokers_know_the_topic(machine: Machine) -> None:
    response = machine.create(NewTopic("orders", 2, 1))
    assert response.metadata_offset == len(machine.records)
    (created,) = response.topics
    assert (created.name, created.topic_id) == ("orders", machine.image.topics["orders"].topic_id)


def test_counts_left_out_are_the_clusters_defaults() -> None:
    machine = Machine(BrokerConfig(num_partitions=3, default_replication_factor=2))
    machine.start(1, 2)
    machine.create(NewTopic("orders"))
    topic = machine.image.topics["orders"]
    assert [sorted(partition.replicas) for partition in topic.partitions] == [[1, 2]] * 3


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "é", "x" * (TOPIC_NAME_LENGTH_MAX + 1), "__consumer_offsets", "__x"]
)
def test_names_that_kafka_refuses_are_refused(machine: Machine, name: str) -> None:
    (refused,) = machine.create(NewTopic(name, 1, 1)).topics
    assert (refused.error_code, repr(name) in refused.error_message) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        True,
    )


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "_x", "x" * TOPIC_NAME_LENGTH_MAX])
def test_names_that_kafka_allows_are_allowed(machine: Machine, name: str) -> None:
    assert error_of(machine, NewTopic(name, 1, 1)) is ErrorCode.NONE


def test_a_name_is_used_once(machine: Machine) -> None:
    machine.create(NewTopic("orders", 1, 1))
    assert error_of(machine, NewTopic("orders", 1, 1)) is ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("count", [0, -2, PARTITIONS_MAX + 1])
def test_the_number_of_a_topics_partitions_has_bounds(machine: Machine, count: int) -> None:
    assert error_of(machine, NewTopic("orders", count, 1)) is ErrorCode.INVALID_PARTITIONS


def test_the_most_partitions_allowed_can_be_created(machine: Machine) -> None:
    assert error_of(machine, NewTopic("orders", PARTITIONS_MAX, 1)) is ErrorCode.NONE
    assert len(machine.image.topics["orders"].partitions) == PARTITIONS_MAX


def test_what_one_request_creates_is_bounded_by_the_records_of_a_batch(machine: Machine) -> None:  # A68
    response = machine.create(NewTopic("a", PARTITIONS_MAX - 1, 1), NewTopic("b", 1, 1), NewTopic("c", 0, 1))
    assert [result.error_code for result in response.topics] == [
        ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_PARTITIONS
    ]  # fmt: skip
    response = machine.create(NewTopic("d", PARTITIONS_MAX - 2, 1), NewTopic("e", 2, 1), NewTopic("f", 1, 1))
    codes = [result.error_code for result in response.topics]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS, ErrorCode.NONE]
    configured = NewTopic("g", PARTITIONS_MAX, 1, {"flush": "batch"})
    assert error_of(machine, configured) is ErrorCode.INVALID_PARTITIONS  # its configuration is a record, too


@pytest.mark.parametrize("replication_factor", [0, -2, 2])
def test_the_replication_factor_is_one_up_to_the_number_of_brokers(
    machine: Machine, replication_factor: int
) -> None:
    assert (
        error_of(machine, NewTopic("orders", 1, replication_factor)) is ErrorCode.INVALID_REPLICATION_FACTOR
    )


def test_a_fenced_broker_becomes_a_replica_but_not_in_sync() -> None:  # B47
    machine = cluster(2)
    machine.register(3)
    assert error_of(machine, NewTopic("orders", 4, 3)) is ErrorCode.NONE
    assert {
        (each.replicas[2], each.isr == each.replicas[:2])
        for each in machine.image.topics["orders"].partitions
    } == {(3, True)}


def test_brokers_may_be_named_instead_of_counts() -> None:
    machine = cluster(3)
    create(machine, (3, 1), (1, 2))
    partitions = machine.image.topics["orders"].partitions
    assert [(each.replicas, each.isr, each.leader_id) for each in partitions] == [
        ((3, 1), (3, 1), 3), ((1, 2), (1, 2), 1)
    ]  # fmt: skip


@pytest.mark.parametrize("assignments", [(), ((),), ((1, 1),), ((1, 9),), ((1, 2), (1,)), ((3,),)])
def test_brokers_that_cannot_be_are_refused(assignments: tuple[tuple[int, ...], ...]) -> None:
    machine = cluster(2)
    machine.register(3)  # fenced: it cannot lead
    topic = NewTopic("orders", assignments=assignments)
    assert error_of(machine, topic) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "orders" not in machine.image.topics


@pytest.mark.parametrize("counts", [(1, -1), (-1, 2), (1, 2)])
def test_brokers_are_named_or_counts_given_and_not_both(counts: tuple[int, int]) -> None:
    topic = NewTopic("orders", *counts, assignments=((1, 2),))
    assert error_of(cluster(2), topic) is ErrorCode.INVALID_REQUEST


def test_the_first_named_broker_that_runs_leads() -> None:
    machine = cluster(2)
    fence(machine, 1)
    create(machine, (1, 2))
    assert (machine.partition().leader_id, machine.partition().isr) == (2, (2,))


def test_one_replica_must_be_able_to_lead() -> None:  # B47
    machine = Machine()
    machine.register(1)
    assert error_of(machine, NewTopic("orders", 1, 1)) is ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    "configs", [{"segment.byte": "2000"}, {"segment.bytes": "few"}, {"segment.bytes": "1"}]
)
def test_configs_are_checked_by_key_and_value(machine: Machine, configs: dict[str, str]) -> None:
    assert error_of(machine, NewTopic("orders", 1, 1, configs)) is ErrorCode.INVALID_CONFIG


def test_a_topic_that_is_refused_does_not_stop_the_others(machine: Machine) -> None:
    response = machine.create(NewTopic("a", 1, 1), NewTopic("__b", 1, 1), NewTopic("c", 1, 1))
    assert [result.error_code for result in response.topics] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NONE,
    ]
    assert list(machine.image.topics) == ["a", "c"]


def test_a_deleted_topic_is_gone_with_its_configs_and_the_name_is_free(machine: Machine) -> None:
    machine.create(NewTopic("orders", 1, 1, {"flush": "batch"}))
    first_id = machine.image.topics["orders"].topic_id
    assert machine.written_by(DeleteTopicsRequest(("orders",))) == [RemoveTopicRecord(topic_id=first_id)]
    assert (dict(machine.image.topics), dict(machine.image.topic_configs("orders"))) == ({}, {})
    assert error_of(machine, NewTopic("orders", 1, 1)) is ErrorCode.NONE
    assert machine.image.topics["orders"].topic_id != first_id


def test_deleting_what_is_not_there_is_an_error_for_that_name_only(machine: Machine) -> None:
    machine.create(NewTopic("orders", 1, 1))
    topic_id = machine.image.topics["orders"].topic_id
    response = machine.handle(DeleteTopicsRequest(("absent", "orders")))
    absent, orders = response.topics
    assert (absent.name, absent.error_code, absent.error_message) == (
        "absent",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "there is no topic 'absent'",
    )
    assert (orders.name, orders.topic_id, orders.error_code) == ("orders", topic_id, ErrorCode.NONE)
    assert response.metadata_offset == len(machine.records)


def test_metadata_are_answered_from_the_newest_image(machine: Machine) -> None:
    machine.create(NewTopic("orders", 1, 1))
    response = machine.handle(MetadataRequest())
    assert (response.cluster_id, response.controller_id) == ("cluster-a", 3001)
    assert [topic.name for topic in response.topics] == ["orders"]
    assert response.metadata_offset == len(machine.records)


# ---- Internal topics -------------------------------------------------------------------------------------------------


def created_by_broker(machine: Machine, name: str, *, epoch_change: int = 0) -> TopicResult:
    """What becomes of an internal topic that broker 1 asks for."""
    epoch = machine.image.brokers[1].broker_epoch + epoch_change
    response: CreateTopicsResponse = machine.handle(CreateTopicsRequest((NewTopic(name, 2, 1),), 1, epoch))
    return response.topics[0]


def test_a_broker_creates_an_internal_topic_and_a_client_does_not() -> None:
    machine = Machine()
    machine.start(1)
    assert (
        machine.create(NewTopic("__offsets", 2, 1)).topics[0].error_code is ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    assert created_by_broker(machine, "__offsets").error_code is ErrorCode.NONE
    assert created_by_broker(machine, "__offsets").error_code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(machine.image.topics["__offsets"].partitions) == 2


@pytest.mark.parametrize("name", ["orders", "__cluster_metadata", "__a b"])
def test_what_a_broker_creates_for_the_cluster_has_an_internal_name(name: str) -> None:
    machine = Machine()
    machine.start(1)
    assert created_by_broker(machine, name).error_code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_process_that_is_not_the_registered_broker_creates_no_internal_topic() -> None:  # H3
    machine = Machine()
    machine.start(1)
    with pytest.raises(StaleBrokerEpoch):
        created_by_broker(machine, "__offsets", epoch_change=-1)
    with pytest.raises(BrokerIdNotRegistered):
        machine.handle(CreateTopicsRequest((NewTopic("__offsets", 2, 1),), 7, 0))
