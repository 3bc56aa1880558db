"""Brokers register (H2, H3, and the restart rule of design §4)."""

from uuid import UUID

import pytest

from rayka.errors import DuplicateBrokerRegistration, InconsistentClusterId, UnsupportedVersion
from rayka.metadata.metadata_records import RegisterBrokerRecord
from rayka.protocol.topics import NewTopic
from tests.controller.support import SECOND_PROCESS, SESSION_MS, WITHOUT_ELR, Machine, registration
from tests.metadata.support import directory


def test_the_broker_epoch_is_the_offset_of_the_registration_and_it_starts_fenced() -> None:  # H3
    machine = Machine()
    epoch = machine.register(1)
    record = machine.records[epoch]
    assert isinstance(record, RegisterBrokerRecord)
    assert (record.broker_id, record.broker_epoch) == (1, epoch)
    assert machine.image.brokers[1].is_fenced


def test_a_registration_keeps_all_that_the_broker_says_of_itself() -> None:
    machine = Machine()
    directories = (directory(1, 0), directory(1, 1))
    machine.register(
        1, host="elsewhere", rack="a", directories=directories, min_metadata_version=1, max_metadata_version=3
    )
    registered = machine.image.brokers[1].registration
    assert (registered.host, registered.rack, registered.directories) == ("elsewhere", "a", directories)
    assert (registered.min_metadata_version, registered.max_metadata_version) == (1, 3)


def test_a_broker_of_another_cluster_is_refused_naming_both() -> None:  # H2
    with pytest.raises(InconsistentClusterId, match=r"cluster-b.*cluster-a.*/data/broker-1/0"):
        Machine().register(1, cluster_id="cluster-b")


def test_a_broker_that_never_registered_names_no_cluster() -> None:
    machine = Machine()
    assert machine.register(1, cluster_id="") == machine.registered_offset


@pytest.mark.parametrize("versions", [(3, 4), (1, 1)])
def test_a_broker_that_does_not_know_the_metadata_version_is_refused(versions: tuple[int, int]) -> None:  # H2
    with pytest.raises(UnsupportedVersion, match=r"metadata\.version"):
        Machine().register(1, min_metadata_version=versions[0], max_metadata_version=versions[1])


def test_the_same_process_may_register_again_and_writes_nothing() -> None:  # H3
    machine = Machine()
    machine.start(1)
    epoch = machine.image.brokers[1].broker_epoch
    assert machine.written_by(registration(1)) == []
    assert machine.register(1) == epoch
    assert not machine.image.brokers[1].is_fenced


def test_the_same_process_may_amend_its_registration_and_keeps_its_epoch() -> None:  # H3
    machine = Machine()
    machine.start(1)
    epoch = machine.image.brokers[1].broker_epoch
    assert machine.register(1, host="elsewhere") == epoch
    broker = machine.image.brokers[1]
    assert (broker.registration.host, broker.is_fenced, broker.broker_epoch) == ("elsewhere", False, epoch)
    assert machine.written_by(registration(1, host="elsewhere")) == []  # once is enough


def test_a_process_that_took_over_the_same_directories_replaces_the_old_one_at_once() -> None:  # design §4
    machine = Machine()
    machine.start(1)
    epoch = machine.restart(1)
    broker = machine.image.brokers[1]
    assert (broker.broker_epoch, broker.is_fenced) == (epoch, True)
    assert epoch == machine.registered_offset


def test_the_late_registration_of_a_dead_process_replaces_no_other() -> None:  # H2, design §4
    machine = Machine()
    machine.start(1)
    late = machine.restarted(
        1, incarnation_id=UUID(int=3), previous_broker_epoch=machine.image.brokers[1].broker_epoch
    )
    machine.restart(1)  # of its successor: the two began with the same directories
    for _ in range(2):  # without a heartbeat yet, and serving
        with pytest.raises(DuplicateBrokerRegistration, match="stop that one"):
            machine.handle(late)
        machine.heartbeat(1)
    broker = machine.image.brokers[1]
    assert (broker.registration.incarnation_id, broker.is_fenced) == (SECOND_PROCESS, False)


def test_the_epoch_that_a_process_knows_is_no_proof_with_other_directories() -> None:  # H2, design §4
    machine = Machine()
    machine.start(1)
    with pytest.raises(DuplicateBrokerRegistration):
        machine.restart(1, directories=(directory(1, 5),))


def test_a_process_with_other_directories_waits_for_the_session_to_end() -> None:  # H2
    machine = Machine()
    machine.start(1)
    other = {"incarnation_id": SECOND_PROCESS, "directories": (directory(1, 5),)}
    with pytest.raises(DuplicateBrokerRegistration, match="a live process on host localhost"):
        machine.register(1, **other)
    machine.now_ms = SESSION_MS - 1
    with pytest.raises(DuplicateBrokerRegistration, match="wait 1 ms"):
        machine.register(1, **other)
    machine.now_ms = SESSION_MS
    assert machine.register(1, **other) == machine.registered_offset


def test_holding_only_some_of_the_directories_proves_nothing() -> None:  # design §4
    machine = Machine()
    machine.start(1, directories=(directory(1, 0), directory(1, 1)))
    with pytest.raises(DuplicateBrokerRegistration):
        machine.restart(1, directories=(directory(1, 0),))


def test_a_broker_without_a_heartbeat_since_it_registered_counts_as_alive() -> None:  # H6
    machine = Machine()
    machine.register(1)
    machine.now_ms = 100 * SESSION_MS
    with pytest.raises(DuplicateBrokerRegistration):
        machine.register(1, incarnation_id=SECOND_PROCESS, directories=(directory(1, 5),))


def test_a_fenced_broker_without_a_heartbeat_to_a_new_controller_has_no_session() -> None:  # H2, H6
    machine = Machine()
    machine.start(1)
    machine.now_ms = SESSION_MS
    machine.sweep()
    machine.change_controller()
    epoch = machine.register(1, incarnation_id=SECOND_PROCESS, directories=(directory(1, 5),))
    with pytest.raises(DuplicateBrokerRegistration):  # this one registered with this controller
        machine.register(1, incarnation_id=UUID(int=3), directories=(directory(1, 6),))
    assert machine.image.brokers[1].broker_epoch == epoch


def test_a_new_controller_waits_for_the_session_of_a_broker_that_is_not_fenced() -> None:  # H2, H6
    machine = Machine()
    machine.start(1)
    machine.now_ms = 10 * SESSION_MS
    machine.change_controller()
    machine.now_ms += SESSION_MS - 1
    with pytest.raises(DuplicateBrokerRegistration, match="wait 1 ms"):
        machine.register(1, incarnation_id=SECOND_PROCESS, directories=(directory(1, 5),))


def test_a_directory_belongs_to_one_broker() -> None:  # H2
    machine = Machine()
    machine.register(1)
    with pytest.raises(DuplicateBrokerRegistration, match="must not be copied"):
        machine.register(2, directories=(directory(1),))


def test_without_elrs_a_new_process_leaves_the_lead_and_stays_in_the_isr_as_its_last_member() -> (
    None
):  # H3, B43
    machine = Machine(records=WITHOUT_ELR)
    machine.start(1)
    machine.create(NewTopic("orders", 2, 1))
    epoch = machine.restart(1)
    assert isinstance(
        machine.records[epoch], RegisterBrokerRecord
    )  # the last one: a crash before it is retried
    assert (
        repr(machine.partition())
        == "<PartitionImage leader=-1 epoch=1 isr=[1] replicas=[1] partition_epoch=1>"
    )
    machine.heartbeat(1)
    assert (
        repr(machine.partition())
        == "<PartitionImage leader=1 epoch=2 isr=[1] replicas=[1] partition_epoch=2>"
    )
