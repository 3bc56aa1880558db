"""Where replicas go (B47)."""

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.config.broker_config import BrokerConfig
from rayka.controller.directory_sizes import DirectorySizes
from rayka.controller.replica_index import ReplicaIndex
from rayka.controller.replica_placement import Placement, ReplicaPlacer
from rayka.errors import InvalidReplicationFactor
from rayka.ids import Role
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.metadata.metadata_records import BrokerRegistrationChangeRecord, ConfigRecord, MetadataRecord
from rayka.protocol.configs import ResourceType
from tests.metadata.support import active, delta_between, directory, image_of, partition, registered, topic

COORDINATOR = (Role.COORDINATOR,)


def place(
    records: list[MetadataRecord],
    partition_count: int,
    replication_factor: int,
    seed: int = 1,
    *,
    is_internal: bool = False,
    sizes: DirectorySizes | None = None,
) -> list[Placement]:
    image = image_of(records)
    index = ReplicaIndex()
    index.update(delta_between(MetadataImage(), image), image)
    placer = ReplicaPlacer(image, Random(seed), index, BrokerConfig(), sizes or DirectorySizes())
    return list(placer.place(partition_count, replication_factor, is_internal=is_internal))


def test_leaders_take_turns() -> None:  # B47
    replicas = [placement.replicas for placement in place(active(1, 2, 3), 6, 2)]
    assert Counter(each[0] for each in replicas) == {1: 2, 2: 2, 3: 2}
    assert Counter(each[1] for each in replicas) == {1: 2, 2: 2, 3: 2}


def test_replicas_are_spread_over_racks_and_leaders_over_brokers() -> None:  # B47
    brokers = [*active(1, 2, rack="a"), *active(3, 4, rack="b")]
    replicas = [placement.replicas for placement in place(brokers, 8, 2)]
    assert all((first <= 2) != (second <= 2) for first, second in replicas)
    assert Counter(each[0] for each in replicas) == {1: 2, 2: 2, 3: 2, 4: 2}


@pytest.mark.parametrize("racks", ["aaa", "abc"])
def test_what_one_broker_leads_goes_to_several_when_it_fails(racks: str) -> None:  # B47
    brokers = [record for number, rack in enumerate(racks, 1) for record in active(number, rack=rack)]
    replicas = [placement.replicas for placement in place(brokers, 300, 3)]
    seconds = Counter(second for first, second, _ in replicas if first == 1)
    assert min(seconds[2], seconds[3]) > 30


def test_racks_of_different_sizes_lead_equally_often() -> None:  # B47
    brokers = [*active(1, rack="a"), *active(2, 3, rack="b")]
    leaders = Counter(placement.replicas[0] for placement in place(brokers, 40, 3))
    assert leaders == {1: 20, 2: 10, 3: 10}


def test_every_rack_has_a_replica_where_there_are_enough() -> None:  # B47
    brokers = [*active(1, 2, rack="a"), *active(3, rack="b"), *active(4, 5, 6, rack="c")]
    for placement in place(brokers, 60, 3):
        assert {"a" if each <= 2 else "b" if each == 3 else "c" for each in placement.replicas} == {
            "a",
            "b",
            "c",
        }


def test_a_rack_without_a_running_broker_gives_replicas_and_no_leader() -> None:  # B47
    brokers = [*active(1, 2, rack="a"), registered(3, rack="b")]
    assert {placement.replicas[0] for placement in place(brokers, 10, 3)} == {1, 2}


def test_one_running_broker_leads_everything() -> None:  # B47
    brokers = [*active(1), registered(2), registered(3)]
    assert {placement.replicas[0] for placement in place(brokers, 10, 3)} == {1}


def test_fenced_brokers_come_last_and_never_lead() -> None:  # B47
    replicas = [placement.replicas for placement in place([*active(1, 2), registered(3)], 4, 3)]
    assert all(each[2] == 3 for each in replicas)


def test_the_start_is_random_and_repeats_with_the_seed() -> None:
    leaders = [place(active(1, 2, 3, 4), 1, 1, seed)[0].replicas[0] for seed in range(20)]
    assert leaders == [place(active(1, 2, 3, 4), 1, 1, seed)[0].replicas[0] for seed in range(20)]
    assert len(set(leaders)) > 1


def test_the_directory_with_the_fewest_replicas_is_taken() -> None:
    records = [*active(1, directory_count=2), topic(), partition(0), partition(1)]
    first, second = directory(1, 0).directory_id, directory(1, 1).directory_id
    directories = [placement.directories[0] for placement in place(records, 4, 1)]
    assert directories == [second, second, first, second]


def test_the_directory_with_the_fewest_bytes_is_taken() -> None:
    """Two replicas of 100 bytes together are in the first, and one of 600 is in the second: one of 233 is expected."""
    records = [*active(1, directory_count=2), topic(), partition(0), partition(1)]
    (broker,) = image_of(records).brokers.values()
    first, second = (each.directory_id for each in broker.directories)
    sizes = DirectorySizes()
    sizes.on_heartbeat(broker, (100, 600), {first: 2, second: 1})
    records.append(msgspec.structs.replace(partition(2), directories=(second,)))
    directories = [each.directories[0] for each in place(records, 5, 1, sizes=sizes)]
    assert directories == [first, first, first, second, first]


def test_what_a_process_before_said_of_its_directories_does_not_count() -> None:
    records = [*active(1, directory_count=2), topic(), partition(0), partition(1)]
    (broker,) = image_of(records).brokers.values()
    before = BrokerImage(
        msgspec.structs.replace(broker.registration, broker_epoch=0),
        is_fenced=False,
        is_in_controlled_shutdown=False,
    )
    sizes = DirectorySizes()
    sizes.on_heartbeat(before, (0, 600), {})
    (placed,) = place(records, 1, 1, sizes=sizes)
    assert placed.directories == (directory(1, 1).directory_id,)


@pytest.mark.parametrize("resource", ["", "1"])
def test_a_cordoned_directory_takes_no_replica(resource: str) -> None:
    cordoned = _cordoned(resource, f"/elsewhere, {directory(1, 0).path}/")
    directories = {each.directories for each in place([*active(1, directory_count=2), cordoned], 4, 1)}
    assert directories == {(directory(1, 1).directory_id,)}


def test_a_broker_whose_directories_are_all_cordoned_takes_no_replica() -> None:
    placed = place([*active(1, 2), _cordoned("1", "*")], 4, 1)
    assert {each.replicas for each in placed} == {(2,)}
    with pytest.raises(InvalidReplicationFactor, match=r"hold a replica, 1 .*not cordoned"):
        place([*active(1, 2), _cordoned("1", "*")], 1, 2)


def test_a_broker_that_is_to_go_takes_no_replica() -> None:
    goes = ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name="1", name="scaling.leaving", value="true"
    )
    assert {each.replicas for each in place([*active(1, 2), goes], 4, 1)} == {(2,)}


def _cordoned(resource: str, paths: str) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name=resource, name="cordoned.log.dirs", value=paths
    )


def test_a_failed_directory_takes_no_replica() -> None:
    offline = BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=1, offline_directories=(directory(1, 0).directory_id,)
    )
    directories = {each.directories for each in place([*active(1, directory_count=2), offline], 4, 1)}
    assert directories == {(directory(1, 1).directory_id,)}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], r"2 is above .* hold a replica, 0 .*; start 2 more$"),
        ([registered(1), registered(2)], "all 2 brokers are fenced"),
        (active(1), r"2 is above .* hold a replica, 1 .*; start 1 more or ask for at most 1$"),
    ],
)
def test_without_enough_brokers_the_message_says_how_many_there_are(
    records: list[MetadataRecord], expected: str
) -> None:
    with pytest.raises(InvalidReplicationFactor, match=expected):
        place(records, 1, 2)


@given(st.data())
def test_no_broker_holds_two_replicas_and_the_first_is_unfenced(data: st.DataObject) -> None:  # B47
    count = data.draw(st.integers(1, 7))
    fenced = data.draw(
        st.lists(st.booleans(), min_size=count, max_size=count).filter(lambda each: not all(each))
    )
    racks = data.draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    brokers: list[MetadataRecord] = [
        registered(number, is_fenced=fenced[number - 1], rack=racks[number - 1])
        for number in range(1, count + 1)
    ]
    replication_factor = data.draw(st.integers(1, count))
    for replicas, directories in place(brokers, 20, replication_factor, data.draw(st.integers(0, 99))):
        assert len(set(replicas)) == replication_factor
        assert directories == tuple(directory(each).directory_id for each in replicas)
        states = [fenced[each - 1] for each in replicas]
        assert states == sorted(states)
        assert not states[0]


def place_internal(records: list[MetadataRecord], count: int, replication_factor: int) -> list[Placement]:
    return place(records, count, replication_factor, is_internal=True)


def test_partitions_of_users_are_never_on_a_coordinator() -> None:
    for replicas, _ in place([*active(1, 2), *active(1001, roles=COORDINATOR)], 20, 2):
        assert set(replicas) == {1, 2}


def test_coordinators_alone_hold_no_topic_of_a_user() -> None:
    with pytest.raises(InvalidReplicationFactor, match="hold a replica, 0 "):
        place(active(1001, roles=COORDINATOR), 1, 1)


def test_coordinators_lead_internal_partitions_in_turn_and_brokers_fill_up() -> None:
    records = [*active(1, 2, 3), *active(1001, 1002, roles=COORDINATOR)]
    replicas = [placement.replicas for placement in place_internal(records, 12, 3)]
    assert all(set(each[:2]) == {1001, 1002} for each in replicas)
    assert Counter(each[0] for each in replicas) == {1001: 6, 1002: 6}
    assert Counter(each[2] for each in replicas) == {1: 4, 2: 4, 3: 4}


def test_brokers_fill_up_from_racks_without_a_coordinator() -> None:
    coordinators = [*active(1001, rack="a", roles=COORDINATOR), *active(1002, rack="b", roles=COORDINATOR)]
    brokers = [*active(1, rack="a"), *active(2, rack="b"), *active(3, rack="c")]
    assert {placement.replicas[2] for placement in place_internal([*brokers, *coordinators], 12, 3)} == {3}


def test_brokers_lead_internal_partitions_while_no_coordinator_runs() -> None:
    replicas = [
        each.replicas for each in place_internal([*active(1, 2), registered(1001, roles=COORDINATOR)], 4, 3)
    ]
    assert all(set(each[:2]) == {1, 2} and each[2] == 1001 for each in replicas)


def test_a_node_that_is_both_leads_internal_partitions_and_holds_those_of_users() -> None:
    records = [*active(1, roles=(Role.BROKER, Role.COORDINATOR)), *active(2)]
    assert {placement.replicas for placement in place_internal(records, 4, 2)} == {(1, 2)}
    assert {placement.replicas[0] for placement in place(records, 4, 2)} == {1, 2}
