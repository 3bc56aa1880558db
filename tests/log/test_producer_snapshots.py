"""The producers that a log knows after roll, restart, crash and truncation (C9, C10)."""

import struct
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rayka.config.topic_config import TopicConfig
from rayka.errors import ErrorCode, StorageError
from rayka.log.log import Log
from rayka.log.producer_state import (
    CACHED_BATCHES,
    ProducerStates,
    SequencedBatch,
    decode_snapshot,
    encode_snapshot,
)
from rayka.log.recovery import Tearing
from rayka.log.retention import Clock, expire
from rayka.protocol.batch_format import RecordBatch
from rayka.testing.memory_disk import MemoryDisk
from tests.log.directory_support import ORDERS, formatted_disk, open_directory, open_orders, run
from tests.log.producer_support import LAST, PRODUCER, answer, append, known, produced
from tests.log.support import (
    DIRECTORY,
    SMALL,
    fill,
    new_log,
    open_log,
    segment_bases,
    segment_path,
    sync,
    truncate,
)

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def snapshot_offsets(disk: MemoryDisk) -> list[int]:
    names = disk.list(DIRECTORY) if disk.exists(DIRECTORY) else []
    return [int(name[:20]) for name in names if name.endswith(".snapshot")]


def snapshot_path(offset: int) -> str:
    return segment_path(offset, ".snapshot")


def send(log: Log, count: int, first_sequence: int = 0) -> None:
    """So many batches of one record each, about ten to a segment."""
    for sequence in range(first_sequence, first_sequence + count):
        append(log, produced(sequence, size_bytes=50))


def reopened(disk: MemoryDisk, log: Log) -> Log:
    """After a clean shutdown."""
    log.close()
    sync(disk, log)
    return open_log(disk, tearing=Tearing.NOTHING, recovery_point=log.log_end_offset)


# ---- The file ----


def test_a_snapshot_has_kafkas_layout() -> None:  # C9
    states = ProducerStates("orders-3", 0)
    states.add(7, 2, SequencedBatch(last_sequence=9, last_offset=109, offset_delta=4, timestamp_ms=1234))
    data = encode_snapshot(states)
    assert struct.unpack(">hIi", data[:10]) == (1, crc32c(data[6:]), 1)
    assert struct.unpack(">qhiqiqiq", data[10:]) == (7, 2, 9, 109, 4, 1234, -1, -1)


def test_a_snapshot_comes_back_as_it_was() -> None:  # C9
    states = ProducerStates("orders-3", 0)
    for number in range(12):
        batch = SequencedBatch(number * 3 + 2, number * 3 + 102, 2, number)
        states.add(number % 2, 5, batch)
    again = ProducerStates("orders-3", 0)
    for each in decode_snapshot(encode_snapshot(states)) or []:
        again.add(*each)
    assert known(again) == known(states)
    assert [len(entry.batches) for _, entry in again.items()] == [CACHED_BATCHES] * 2


@pytest.mark.parametrize("cut", [0, 3, 9, 30, 55])
def test_a_snapshot_that_was_cut_is_noticed(cut: int) -> None:  # C10
    states = ProducerStates("orders-3", 0)
    states.add(7, 2, SequencedBatch(9, 109, 4, 1234))
    data = encode_snapshot(states)
    assert len(data) == 56
    assert decode_snapshot(data[:cut]) is None
    assert decode_snapshot(data[:cut] + bytes(len(data) - cut)) is None


# ---- When it is taken ----


def test_a_roll_takes_one_at_the_offset_where_the_next_segment_begins() -> None:  # C9
    disk, log = new_log()
    send(log, 30)
    assert len(segment_bases(disk)) > 2
    assert snapshot_offsets(disk) == segment_bases(disk)[1:]
    content = decode_snapshot(disk.read_at(snapshot_path(segment_bases(disk)[1]), 0, 1 << 20))
    assert content is not None
    assert content[-1][2].last_offset == segment_bases(disk)[1] - 1


def test_a_roll_makes_it_part_of_the_next_sync() -> None:  # C9
    disk, log = new_log()
    send(log, 30)
    assert {snapshot_path(base) for base in segment_bases(disk)[1:]} <= set(log.unsynced().files)


def test_a_clean_shutdown_takes_one_at_the_end() -> None:  # C9
    disk, log = new_log()
    send(log, 3)
    assert snapshot_offsets(disk) == []
    before = known(log.producers)
    again = reopened(disk, log)
    assert (snapshot_offsets(disk), known(again.producers)) == ([3], before)


def test_a_clean_shutdown_without_producers_leaves_nothing() -> None:  # C9
    disk, log = new_log()
    fill(log, 3)
    assert len(reopened(disk, log).producers) == 0
    assert snapshot_offsets(disk) == []


def test_after_a_clean_restart_all_five_batches_are_recognised() -> (
    None
):  # C3, C9: more than Kafka's last one
    disk, log = new_log()
    send(log, 8)
    again = reopened(disk, log)
    assert [answer(again, produced(sequence)) for sequence in range(3, 8)] == [(n, n) for n in range(3, 8)]
    assert answer(again, produced(2)) is OUT_OF_ORDER
    assert answer(again, produced(8)) == (8, 8)


def test_a_producer_that_expired_does_not_come_back_after_a_clean_restart() -> None:  # C8, C9
    disk, log = new_log()
    send(log, 30)
    log.producers.expire(10**9, 1)
    assert len(reopened(disk, log).producers) == 0


def test_behind_a_damaged_one_the_one_before_it_is_used() -> None:  # C10
    """The older snapshot knows a producer whose batches are gone with their segment."""
    disk, log = new_log()
    append(log, produced(0, producer_id=1))
    send(log, 40)
    bases = segment_bases(disk)
    sync(disk, log)
    log.increment_log_start_offset(bases[-2])
    assert snapshot_offsets(disk) == bases[-2:]
    disk.flip_bit(snapshot_path(bases[-1]), 20)
    sync(disk, log)
    again = open_log(disk, start=bases[-2], recovery_point=log.log_end_offset)
    assert known(again.producers) == known(log.producers)
    assert snapshot_offsets(disk) == bases[-2:]  # the damaged one is made anew


def test_one_goes_with_its_segment() -> None:  # C9
    disk, log = new_log()
    send(log, 40)
    sync(disk, log)
    log.increment_log_start_offset(25)
    assert snapshot_offsets(disk) == segment_bases(disk)
    assert open_log(disk, start=25).producers.check(produced(39)) is not None


# ---- Crashes ----


@pytest.mark.parametrize("recovery_point", [0, 5, 20, 60])
def test_a_killed_process_forgets_no_producer(recovery_point: int) -> None:  # C10
    disk, log = new_log()
    send(log, 60)
    disk.process_crash()
    again = open_log(disk, recovery_point=recovery_point)
    assert known(again.producers) == known(log.producers)


def test_a_torn_tail_is_not_remembered() -> None:  # C10
    disk, log = new_log()
    send(log, 4)
    disk.tear_next_append(segment_path(0), 70)
    with pytest.raises(StorageError):
        append(log, produced(4))
    disk.process_crash()
    again = open_log(disk)
    assert again.recovery.cut is not None
    assert answer(again, produced(4)) == (4, 4)


@pytest.mark.parametrize("damage", ["flipped", "torn", "empty"])
def test_a_damaged_snapshot_is_removed_and_an_older_one_used(damage: str) -> None:  # C10
    disk, log = new_log()
    send(log, 35)
    expected = known(log.producers)
    log.close()
    sync(disk, log)
    path = snapshot_path(35)
    if damage == "flipped":
        disk.flip_bit(path, 20)
    else:
        disk.write(path, disk.read_at(path, 0, 30 if damage == "torn" else 0))
    again = open_log(disk, tearing=Tearing.NOTHING, recovery_point=35)
    assert (known(again.producers), 35 in snapshot_offsets(disk)) == (expected, False)


def test_without_any_good_snapshot_the_whole_log_is_read() -> None:  # C10
    disk, log = new_log()
    send(log, 35)
    log.close()
    for offset in snapshot_offsets(disk):
        disk.flip_bit(snapshot_path(offset), 20)
    again = open_log(disk, tearing=Tearing.NOTHING, recovery_point=35)
    assert known(again.producers) == known(log.producers)
    assert snapshot_offsets(disk) == segment_bases(disk)[1:]


def test_of_the_snapshots_that_no_segment_begins_at_only_the_last_stays() -> None:  # C10
    disk, log = new_log()
    send(log, 3)
    log = reopened(disk, log)
    send(log, 2, 3)
    log = reopened(disk, log)
    assert snapshot_offsets(disk) == [5]
    send(log, 30, 5)
    log = reopened(disk, log)
    assert snapshot_offsets(disk) == [*segment_bases(disk)[1:], 35]


def test_a_snapshot_above_the_recovery_point_is_not_trusted() -> None:  # C10
    """1. The log is at 30, and is truncated to 4. 2. Other batches take it to 30 again. 3. Power is lost, and the
    removal of the old snapshot with it.
    """
    disk, log = new_log()
    send(log, 30)
    old = segment_bases(disk)[2]
    content = disk.read_at(snapshot_path(old), 0, 1 << 20)
    truncate(disk, log, 4)
    for sequence in range(26):
        append(log, produced(sequence, producer_id=9, size_bytes=50))
    expected = known(log.producers)
    disk.write(snapshot_path(old), content)
    disk.process_crash()
    assert known(open_log(disk, recovery_point=4, tearing=Tearing.ANYWHERE).producers) == expected


def test_a_killed_process_forgets_no_producer_of_deleted_records() -> None:  # C8, C10
    disk, log = new_log()
    append(log, produced(0, producer_id=9))
    send(log, 40)
    sync(disk, log)
    log.increment_log_start_offset(25)
    disk.process_crash()
    again = open_log(disk, recovery_point=4)
    assert segment_bases(disk)[0] > 4
    assert again.producers.check(produced(0, producer_id=9)) is not None


def test_a_process_killed_while_a_log_begins_anew_leaves_no_snapshot_of_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # C9, B25
    disk, log = new_log()
    send(log, 30)

    def is_killed(*_: object) -> None:
        raise StorageError("killed")

    monkeypatch.setattr(log.segments, "replace_all", is_killed)
    with pytest.raises(StorageError):
        log.truncate_fully_and_start_at(50)
    assert snapshot_offsets(disk) == []


def test_whenever_power_is_lost_the_state_is_that_of_the_log() -> None:  # C9, C10
    for seed in range(60):
        random = Random(seed)
        disk, log = new_log()
        recovery_point = 0
        for sequence in range(random.randrange(60)):
            append(log, produced(sequence, size_bytes=50))
            if random.random() < 0.1:
                sync(disk, log)
                recovery_point = log.flushed_offset
        disk.power_loss(random)
        again = open_log(disk, recovery_point=recovery_point, tearing=Tearing.ANYWHERE)
        end = again.log_end_offset
        last_five = [(n, n, n, n) for n in range(max(0, end - CACHED_BATCHES), end)]
        assert known(again.producers) == ({PRODUCER: (0, last_five)} if end else {})


class _Producers:
    """A log in a directory whose producers send, while it is rolled, shortened, synced, killed, cut off from power."""

    def __init__(self, seed: int) -> None:
        self._random, self._disk = Random(seed), formatted_disk()
        self._sent: dict[int, int] = {}  # by producer id the last sequence
        self._durable: dict[int, int] = {}
        self._open()

    def _open(self) -> None:
        self._directory = open_directory(self._disk)
        self._log = open_orders(self._directory, SMALL.model_copy(update={"retention_ms": 1000}))
        self._sent = {each: entry.batches[-1].last_sequence for each, entry in self._log.producers.items()}

    def append(self) -> None:
        producer_id = self._random.randrange(5)
        sequence = self._sent.get(producer_id, -1) + 1
        size_bytes = self._random.choice([50, 900])
        append(self._log, produced(sequence, producer_id=producer_id, size_bytes=size_bytes))
        self._sent[producer_id] = sequence

    def sync(self) -> None:
        run(self._directory.sync([self._log]))
        self._durable = dict(self._sent)

    def roll(self) -> None:
        self._log.roll(0)

    def delete_records(self) -> None:
        bound = self._log.flushed_offset
        if bound > self._log.log_start_offset:
            self._log.increment_log_start_offset(self._random.randint(self._log.log_start_offset, bound))

    def expire(self) -> None:
        while expire(self._log, self._log.flushed_offset, Clock(10_000, 10_000)) is not None:
            pass

    def remove_files(self) -> None:
        run(self._directory.remove_deleted(self._log.retired.take()))

    def checkpoint(self) -> None:
        run(self._directory.checkpoint(lambda: {ORDERS: self._log.flushed_offset}))

    def kill(self) -> None:
        self._disk.process_crash()
        self._open()

    def lose_power(self) -> None:
        self._disk.power_loss(self._random)
        self._open()
        for producer_id, sequence in self._durable.items():
            again = append(self._log, produced(sequence, producer_id=producer_id))
            assert again.is_duplicate, (producer_id, self._log)

    def step(self) -> None:
        self._random.choices(
            [self.append, self.sync, self.roll, self.delete_records, self.expire, self.remove_files,
             self.checkpoint, self.kill, self.lose_power],
            [12, 4, 1, 2, 2, 2, 3, 1, 1],
        )[0]()  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_forgets_no_producer_of_what_was_synced_whatever_was_removed(seed: int) -> None:  # C8
    """Records appended since the last sync may be gone, or not."""
    producers = _Producers(seed)
    for _ in range(120):
        producers.step()
    producers.lose_power()


# ---- Truncation ----


@pytest.mark.parametrize("offset", [0, 1, 9, 17, 30, 49])
def test_truncation_takes_the_state_back_to_what_it_was_there(offset: int) -> None:  # C9
    disk, log = new_log()
    states = {}
    for sequence in range(50):
        states[sequence] = known(log.producers)
        append(log, produced(sequence, size_bytes=50))
    truncate(disk, log, offset)
    assert known(log.producers) == states[offset]
    assert all(each <= offset for each in snapshot_offsets(disk))
    assert answer(log, produced(offset)) == (offset, offset)


@pytest.mark.parametrize("seed", range(5))
def test_a_truncation_of_a_long_segment_knows_what_a_walk_through_it_would_tell(seed: int) -> None:  # C9
    random = Random(seed)
    disk, log = new_log(TopicConfig())
    sequences = dict.fromkeys(range(4), (0, 0))  # epoch and next sequence; some send often, some hardly ever
    for _ in range(3_000):
        (producer_id,) = random.choices(range(4), (100, 100, 3, 0.1))
        epoch, sequence = sequences[producer_id]
        if random.random() < 0.01:
            epoch, sequence = epoch + 1, 0
        append(log, produced(sequence, epoch=epoch, producer_id=producer_id))
        sequences[producer_id] = epoch, sequence + 1
    while log.log_end_offset > 600:
        truncate(disk, log, log.log_end_offset - random.randint(1, 500))
        walked = open_log(disk, config=TopicConfig())
        assert known(log.producers) == known(walked.producers)


def test_the_silence_of_a_producer_that_a_truncation_finds_again_counts_from_then() -> None:  # C8
    disk, log = new_log()
    send(log, 50)
    log.producers.expire(5_000, 10_000)
    truncate(disk, log, 9)
    log.producers.expire(14_999, 10_000)
    assert len(log.producers) == 1
    log.producers.expire(15_000, 10_000)
    assert len(log.producers) == 0


def test_a_truncation_of_the_end_of_a_long_segment_leaves_the_rest_of_it_alone() -> None:  # C8, C9
    disk, log = new_log(TopicConfig())
    append(log, produced(0, producer_id=1))
    for sequence in range(1_000):
        append(log, produced(sequence, producer_id=2), now_ms=1_000)
    log.producers.expire(1_000, 1_000)
    truncate(disk, log, log.log_end_offset - 10)
    assert [producer_id for producer_id, _ in log.producers.items()] == [
        2
    ]  # a walk would find the first one, too
    assert answer(log, produced(990, producer_id=2)) == (991, 991)
    assert answer(log, produced(986, producer_id=2)) == (987, 987)
    assert answer(log, produced(992, producer_id=2)) is OUT_OF_ORDER


def test_a_log_that_begins_anew_elsewhere_knows_no_producer() -> None:  # C9, B25
    disk, log = new_log()
    send(log, 30)
    log.truncate_fully_and_start_at(100)
    assert (len(log.producers), snapshot_offsets(disk)) == (0, [])
    assert answer(log, produced(30)) == (100, 100)
    assert list(known(open_log(disk, start=100).producers)) == [PRODUCER]


# ---- The model ----

Accepted = tuple[
    int, int, int, int, int, int
]  # producer, epoch, first and last sequence, first and last offset


class Oracle:
    """All batches that were accepted, in a list; asked in the words of the rules."""

    def __init__(self) -> None:
        self.accepted: list[Accepted] = []

    def answer(self, batch: RecordBatch, end_offset: int) -> tuple[int, int] | ErrorCode:
        first = batch.base_sequence
        last = (first + batch.record_count - 1) % (LAST + 1)
        mine = [each for each in self.accepted if each[0] == batch.producer_id]
        if mine:
            epoch, last_known = mine[-1][1], mine[-1][3]
            if batch.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if batch.producer_epoch > epoch and first != 0:
                return OUT_OF_ORDER
            if batch.producer_epoch == epoch:
                recent = [each for each in mine if each[1] == epoch][-5:]
                same = [each for each in recent if each[2:4] == (first, last)]
                if same:
                    return same[0][4:]
                if first != (0 if last_known == LAST else last_known + 1):
                    return OUT_OF_ORDER
        offsets = end_offset, end_offset + batch.record_count - 1
        self.accepted.append((batch.producer_id, batch.producer_epoch, first, last, *offsets))
        return offsets

    def truncate(self, end_offset: int) -> None:
        self.accepted = [each for each in self.accepted if each[5] < end_offset]


class ProducerModel(RuleBasedStateMachine):
    """A log against the list, over rolls, truncations, clean restarts, kills and damaged snapshots."""

    @initialize()
    def begin(self) -> None:
        self.disk, self.log = new_log()
        self.oracle = Oracle()
        self.next: dict[int, tuple[int, int]] = {}

    @rule(
        producer_id=st.integers(0, 2), count=st.integers(1, 3), size=st.sampled_from([1, 200]), data=st.data()
    )
    def send(self, producer_id: int, count: int, size: int, data: st.DataObject) -> None:
        epoch, sequence = self.next.get(producer_id, (3, data.draw(st.sampled_from([0, 5, LAST - 2]))))
        epoch = max(0, epoch + data.draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1])))
        if epoch != self.next.get(producer_id, (epoch, 0))[0]:
            sequence = data.draw(st.sampled_from([0, 0, sequence]))
        sequence = (sequence + data.draw(st.sampled_from([0, 0, 0, 0, -count, -2 * count, 1]))) % (LAST + 1)
        batch = produced(sequence, count, epoch=epoch, producer_id=producer_id, size_bytes=size)
        end_offset = self.log.log_end_offset
        expected = self.oracle.answer(batch, end_offset)
        assert answer(self.log, batch) == expected
        if self.log.log_end_offset > end_offset:
            self.next[producer_id] = (epoch, (batch.last_sequence + 1) % (LAST + 1))

    @rule(producer_id=st.integers(0, 2), back=st.integers(1, 7))
    def send_again(self, producer_id: int, back: int) -> None:
        mine = [each for each in self.oracle.accepted if each[0] == producer_id]
        if len(mine) >= back:
            _, epoch, first, _, first_offset, last_offset = mine[-back]
            count = last_offset - first_offset + 1
            batch = produced(first, count, epoch=epoch, producer_id=producer_id)
            assert answer(self.log, batch) == self.oracle.answer(batch, self.log.log_end_offset)

    @rule()
    def another_append(self) -> None:
        fill(self.log, 1)

    @rule()
    def roll(self) -> None:
        self.log.roll(0)

    @precondition(lambda self: self.log.log_end_offset)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        truncate(self.disk, self.log, data.draw(st.integers(0, self.log.log_end_offset)))
        self.oracle.truncate(self.log.log_end_offset)
        self.next = {}

    @rule()
    def restart(self) -> None:
        self.log = reopened(self.disk, self.log)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.disk.process_crash()
        recovery_point = data.draw(st.integers(0, self.log.log_end_offset))
        self.log = open_log(self.disk, recovery_point=recovery_point)

    @rule(data=st.data())
    def kill_and_damage_a_snapshot(self, data: st.DataObject) -> None:
        offsets = snapshot_offsets(self.disk)
        if offsets:
            self.disk.flip_bit(snapshot_path(data.draw(st.sampled_from(offsets))), 7)
        self.kill(data)


ProducerModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestProducerModel = ProducerModel.TestCase
