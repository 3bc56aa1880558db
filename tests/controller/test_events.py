"""Events: what the controller decided, numbered and bounded, and what other nodes have it record."""

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import BUSY_LOOK_INTERVAL_MS
from rayka.controller.healing_state import REPLAN_INTERVAL_MS, UNPLANNED_INTERVAL_MS
from rayka.errors import UnsupportedVersion
from rayka.metadata.image_snapshot import image_of, image_records
from rayka.metadata.metadata_records import FeatureLevelRecord, decode_record, encode_record
from rayka.protocol.events import (
    EVENTS_MAX,
    DescribeEventsRequest,
    DescribeEventsResponse,
    Event,
    RecordEventRequest,
    RecordEventResponse,
)
from rayka.protocol.topics import UnregisterBrokerRequest
from tests.controller.admin_support import cluster, create, fence
from tests.controller.support import EPOCH_MS, WITHOUT_ELR, Machine, is_incident, registration
from tests.controller.test_healing import TIMEOUT_MS, complete, look, lose, reassign, set_for_all


def all_events(machine: Machine, **asked: int) -> tuple[Event, ...]:
    response: DescribeEventsResponse = machine.handle(DescribeEventsRequest(**asked))
    return response.events


def events(machine: Machine, **asked: int) -> tuple[Event, ...]:
    """Those of decisions, and not of incidents."""
    return tuple(each for each in all_events(machine, **asked) if not is_incident(each.kind))


def record(machine: Machine, reason: str = "busy", timestamp_ms: int = 5) -> int:
    """The number of the event."""
    request = RecordEventRequest(timestamp_ms, "scale-out", ("broker-4",), reason)
    response: RecordEventResponse = machine.handle(request)
    return response.number


def told(machine: Machine) -> list[tuple[str, str]]:
    return [(each.kind, each.reason) for each in events(machine)]


def test_a_recorded_event_is_numbered_and_found_by_those_after_it() -> None:
    machine = Machine()
    assert [record(machine, reason) for reason in ("one", "two", "three")] == [1, 2, 3]
    assert events(machine)[0] == Event(1, 5, "scale-out", ("broker-4",), "one")
    assert [each.reason for each in events(machine, since=1)] == ["two", "three"]
    assert [each.reason for each in events(machine, count=1)] == ["three"]


def test_a_repeated_request_records_nothing_twice() -> None:
    machine = Machine()
    assert (record(machine), record(machine, "other"), record(machine)) == (1, 2, 1)
    assert record(machine, timestamp_ms=6) == 3


def test_the_newest_1000_events_stay_over_a_snapshot_and_a_change_of_the_controller() -> None:
    machine = Machine()
    for number in range(EVENTS_MAX + 7):
        record(machine, str(number))
    machine.change_controller()
    assert [each.number for each in machine.image.events] == list(range(8, EVENTS_MAX + 8))
    assert [each.number for each in events(machine)] == list(range(8, EVENTS_MAX + 8))
    values = [encode_record(each) for each in image_records(machine.image)]
    assert image_of(map(decode_record, values), machine.image.next_offset) == machine.image
    assert record(machine, "next") == EVENTS_MAX + 8


def test_at_an_older_metadata_version_no_event_is_written() -> None:
    machine = Machine(records=WITHOUT_ELR)
    machine.start(1, 2, 3)
    create(machine, (1, 2))
    assert lose(machine, 2) == 1
    assert record(machine) == -1
    assert events(machine) == ()


def test_a_broker_that_cannot_read_events_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match=r"knows metadata.version 1 to 1, the cluster is at 2"):
        Machine().handle(registration(1, max_metadata_version=1))
    older = Machine(records=[FeatureLevelRecord(name="metadata.version", level=1)])
    assert older.handle(registration(1, max_metadata_version=1)).broker_epoch >= 0


# ---- Healing ---------------------------------------------------------------------------------------------------------


def test_healing_tells_that_it_begins_and_ends() -> None:
    machine = cluster(4)
    create(machine, (1, 2), (2, 1))
    lose(machine, 2)
    (begun,) = events(machine)
    assert begun == Event(
        begun.number,
        EPOCH_MS + TIMEOUT_MS,
        "heal-begun",
        ("broker-2",),
        "broker 2 has been gone for 900 s; replicas of 2 partitions are made anew",
    )
    for number in (0, 1):
        complete(machine, number)
    for _ in range(3):
        look(machine, REPLAN_INTERVAL_MS)
    assert told(machine)[1:] == [("heal-ended", "no replica is left to be made anew of what broker 2 held")]


def test_a_broker_that_held_nothing_is_no_event() -> None:
    machine = cluster(4)
    create(machine, (1, 3))
    lose(machine, 2)
    assert events(machine) == ()


def test_healing_that_finds_no_broker_says_so_once_and_begins_when_one_comes() -> None:
    machine = cluster(2)
    create(machine, (1, 2))
    lose(machine, 2)
    for _ in range(3):
        look(machine, UNPLANNED_INTERVAL_MS)
    stopped = ("heal-stopped", "broker 2 is gone, and no broker may take the replicas of 1 partition")
    assert told(machine) == [stopped]
    machine.start(3)
    look(machine, UNPLANNED_INTERVAL_MS)
    assert [kind for kind, _ in told(machine)] == ["heal-stopped", "heal-begun"]


def test_partitions_that_are_left_alone_are_told_of() -> None:
    machine = cluster(4)
    create(machine, (1, 2))
    create(machine, (2,), name="payments")
    lose(machine, 2)
    assert told(machine)[0][1].endswith(
        "1 partition are made anew; 1 without a leader, reassigned or cancelled by an operator are left alone"
    )
    reassign(machine, None)
    look(machine, REPLAN_INTERVAL_MS)
    assert told(machine)[1][1].endswith(
        "; 2 without a leader, reassigned or cancelled by an operator are left alone"
    )


def test_a_broker_that_comes_back_stops_healing() -> None:
    machine = cluster(4, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2), (1, 2))
    lose(machine, 2)
    machine.heartbeat(2)
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert told(machine)[1:] == [("heal-stopped", "broker 2 is not gone any more; moves under way go on")]


def test_healing_of_a_broker_that_is_forgotten_before_the_next_look_has_ended() -> None:
    """The supervisor unregisters one that came with the load as soon as it holds no replica."""
    machine = cluster(4)
    create(machine, (1, 2))
    lose(machine, 2)
    complete(machine)
    machine.handle(UnregisterBrokerRequest(2))
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert told(machine)[1:] == [("heal-ended", "no replica is left to be made anew of what broker 2 held")]


def test_healing_that_is_switched_off_says_so() -> None:
    machine = cluster(4, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2), (1, 2))
    lose(machine, 2)
    set_for_all(machine, "self.healing.enable", "false")
    look(machine, BUSY_LOOK_INTERVAL_MS)
    assert told(machine)[1:] == [("heal-stopped", "self.healing.enable is false; moves under way go on")]


def test_a_second_loss_begins_anew() -> None:
    machine = cluster(5, BrokerConfig(balancer_moves_max=1))
    create(machine, (1, 2), (1, 2), (1, 3))
    lose(machine, 2)
    fence(machine, 3)
    look(machine, 0)
    look(machine, TIMEOUT_MS)
    begun = told(machine)[-1]
    assert begun[0] == "heal-begun"
    assert begun[1].startswith("broker 2, broker 3 has been gone")
