"""The history of incidents: each change of a broker, a disk or the active controller has one event that says why."""

from collections.abc import Callable
from uuid import UUID

import pytest

from rayka.controller.controller import BootstrapMetadata
from rayka.errors import InvalidRequest
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    EventRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.events import DescribeEventsRequest, RecordEventRequest
from rayka.protocol.membership import HeartbeatRequest
from rayka.protocol.topics import NewTopic, UnregisterBrokerRequest
from tests.controller.support import SESSION_MS, WITHOUT_ELR, Machine
from tests.metadata.support import directory

TWO_DISKS = (directory(1, 0), directory(1, 1))
FAILED = TWO_DISKS[1].directory_id


def serving() -> Machine:
    """Three brokers, the first of which has two disks and leads some partitions."""
    machine = Machine()
    machine.start(1, directories=TWO_DISKS)
    machine.start(2, 3)
    machine.create(NewTopic("orders", 6, 2))
    return machine


def told_since(machine: Machine, number: int) -> list[tuple[str, tuple[str, ...], str]]:
    events = machine.handle(DescribeEventsRequest(since=number)).events
    return [(each.kind, each.subjects, each.reason) for each in events]


def restart(machine: Machine) -> None:
    epoch = machine.image.brokers[1].broker_epoch
    machine.restart(1, directories=TWO_DISKS, previous_broker_epoch=epoch)


def fall_silent(machine: Machine) -> None:
    machine.heartbeat(1)
    machine.now_ms += SESSION_MS
    machine.heartbeat(2)
    machine.heartbeat(3)
    machine.sweep()


def end(machine: Machine) -> None:
    machine.report_exit(1, UUID(int=1001))


def stop(machine: Machine) -> None:
    while not machine.heartbeat(1, want_shut_down=True).should_shut_down:
        machine.heartbeat(2)
        machine.heartbeat(3)


def lose_a_disk(machine: Machine) -> None:
    machine.heartbeat(1, offline_directory_ids=(FAILED,), offline_reasons=("[Errno 5] Input/output error",))


def mend_a_disk(machine: Machine) -> None:
    machine.heartbeat(1, recovered_directory_ids=(FAILED,))


def come_back(machine: Machine) -> None:
    restart(machine)
    machine.heartbeat(1)


def forget(machine: Machine) -> None:
    machine.start(9)
    machine.report_exit(9, UUID(int=1009))
    machine.handle(UnregisterBrokerRequest(9))


def cordon(machine: Machine) -> None:
    change = ConfigChange("cordoned.log.dirs", AlterConfigOp.SET, "*")
    machine.handle(IncrementalAlterConfigsRequest((AlteredResource(ResourceType.BROKER, "1", (change,)),)))


def change_controller(machine: Machine) -> None:
    machine.handle(BootstrapMetadata())


@pytest.mark.parametrize(
    ("happens", "kind", "reason"),
    [
        (fall_silent, "broker-fenced", "no heartbeat came for 9.0 s: its process, its machine or the network"),
        (end, "broker-fenced", "its process has ended; others are to lead"),
        (stop, "broker-stopped", "it shut down under control"),
        (restart, "broker-started", "another process registered on host localhost, with all that the one before"),
        (come_back, "broker-unfenced", "it serves on host localhost"),
        (lose_a_disk, "disk-offline", "/data/broker-1/1 is offline: [Errno 5] Input/output error; 1 of 2 directories"),
        (cordon, "broker-cordoned", "no new replica goes to all its directories, as before a drain"),
        (forget, "broker-removed", "it is registered no more; it was on host localhost"),
    ],
)  # fmt: skip
def test_what_happens_to_a_broker_is_told_with_its_cause(
    happens: Callable[[Machine], None], kind: str, reason: str
) -> None:
    machine = serving()
    known = machine.image.next_event_number - 1
    happens(machine)
    told = told_since(machine, known)[-1]
    assert (told[0], told[2][: len(reason)]) == (kind, reason)
    assert told[1] == (("broker-9",) if happens is forget else ("broker-1",))


def test_a_broker_that_may_have_lost_records_is_told_of() -> None:
    machine = serving()
    machine.restart(1, directories=TWO_DISKS)
    kind, _, reason = told_since(machine, -1)[-1]
    assert kind == "broker-started"
    assert "it may lack what the one before had acknowledged" in reason


def test_a_disk_that_takes_writes_again_is_told_of() -> None:
    machine = serving()
    lose_a_disk(machine)
    mend_a_disk(machine)
    assert told_since(machine, -1)[-1] == (
        "disk-online",
        ("broker-1",),
        "/data/broker-1/1 takes writes again",
    )


def test_a_broker_of_an_earlier_version_does_not_say_why_its_disk_is_offline() -> None:
    machine = serving()
    machine.heartbeat(1, offline_directory_ids=(FAILED,))
    assert "is offline: the broker does not say why" in told_since(machine, -1)[-1][2]


def test_nothing_is_recorded_while_nothing_happens() -> None:
    machine = serving()
    lose_a_disk(machine)
    count = len(machine.records)
    for _ in range(20):
        machine.now_ms += SESSION_MS // 4
        for each in (1, 2, 3):
            machine.heartbeat(each, offline_directory_ids=(FAILED,) if each == 1 else ())
        machine.sweep()
    assert len(machine.records) == count


def test_a_change_of_the_active_controller_is_told_of() -> None:
    machine = serving()
    change_controller(machine)
    told = [each for each in told_since(machine, -1) if each[0] == "controller-leads"]
    assert told == [
        ("controller-leads", ("controller-3001",), "it is the active controller"),
        (
            "controller-leads",
            ("controller-3001",),
            "it is the active controller again: it was elected anew, or its process was started anew",
        ),
    ]


def test_a_controller_leads_also_after_an_event_of_its_kind_that_names_no_node() -> None:
    """Such an event stays in the log, and would end one active controller after another."""
    machine = serving()
    machine.handle(RecordEventRequest(machine.now_ms, "controller-leads", (), "by another program"))
    change_controller(machine)
    assert told_since(machine, -1)[-1] == (
        "controller-leads",
        ("controller-3001",),
        "it is the active controller",
    )


@pytest.mark.parametrize("happens", [fall_silent, end, stop, restart, come_back, lose_a_disk, forget])
def test_each_change_of_a_broker_has_one_event_in_its_own_batch(happens: Callable[[Machine], None]) -> None:
    """So a controller that dies half way leaves both or none. A shutdown that begins is told when it is over."""
    machine = serving()
    begin = len(machine.records)
    happens(machine)
    written = machine.records[begin:]
    for number, each in enumerate(written):
        is_change = isinstance(each, RegisterBrokerRecord | UnregisterBrokerRecord) or (
            isinstance(each, BrokerRegistrationChangeRecord) and each.is_in_controlled_shutdown is None
        )
        if is_change:
            assert isinstance(written[number + 1], EventRecord)
    assert any(isinstance(each, EventRecord) for each in written)


def test_at_an_older_metadata_version_no_incident_is_written() -> None:
    machine = Machine(records=WITHOUT_ELR)
    machine.start(1, 2)
    end(machine)
    change_controller(machine)
    assert not any(isinstance(each, EventRecord) for each in machine.records)


def test_a_reason_is_one_line_of_bounded_length() -> None:
    machine = serving()
    reason = "two\nlines \x07" + "x" * 480
    machine.heartbeat(1, offline_directory_ids=(FAILED,), offline_reasons=(reason,))
    told = told_since(machine, -1)[-1][2]
    assert "two lines ?xxx" in told
    assert len(told) == 500
    with pytest.raises(InvalidRequest, match="offline_reasons"):
        HeartbeatRequest(1, 1, 1, False, False, offline_reasons=("x" * 501,)).check()
