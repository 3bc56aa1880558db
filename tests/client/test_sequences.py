"""Sequences over retries, failures and epochs; what of Kafka's TransactionManagerTest and SenderTest is about them."""

from random import Random

import pytest

from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.partition_queue import PRODUCER_EPOCH_MAX, Limits, PartitionQueue, Sequences
from rayka.client.producer.producer_batch import BatchState, ProducerBatch
from rayka.client.producer.record_columns import RECORD_OVERHEAD_BYTES, Moment, PreparedRecord
from rayka.errors import (
    ApiError,
    InvariantBroken,
    NetworkException,
    NotEnoughReplicas,
    OutOfOrderSequence,
    RecordTooLarge,
)
from rayka.log.log import Log
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import Codec, ProducerSequence, RecordBatch
from tests.client.support import expired, new_accumulator, start_batch
from tests.log.support import new_log, read_batches

PRODUCER = 7
RECORD_BYTES = 100 + RECORD_OVERHEAD_BYTES


# ---- Numbers ----


def test_a_batch_follows_the_one_before_it() -> None:  # C11
    sequences = Sequences()
    assert sequences.assign(3, PRODUCER) == ProducerSequence(PRODUCER, 0, 0)
    assert sequences.assign(2, PRODUCER) == ProducerSequence(PRODUCER, 0, 3)
    assert sequences.assign(1, PRODUCER) == ProducerSequence(PRODUCER, 0, 5)


def test_sequences_wrap_to_zero() -> None:  # C1
    sequences = Sequences()
    sequences.assign(2**31 - 1, PRODUCER)
    assert sequences.assign(2, PRODUCER).base_sequence == 2**31 - 1
    assert sequences.assign(1, PRODUCER).base_sequence == 1


def test_an_epoch_begins_with_zero() -> None:  # C11
    sequences = Sequences()
    sequences.assign(5, PRODUCER)
    sequences.begin_next_epoch()
    assert sequences.assign(1, PRODUCER) == ProducerSequence(PRODUCER, 1, 0)


def test_a_producer_id_without_further_epochs_is_replaced() -> None:  # C11, C12
    sequences = Sequences()
    sequences.assign(1, PRODUCER)
    for _ in range(PRODUCER_EPOCH_MAX):
        sequences.begin_next_epoch()
    assert sequences.assign(1, PRODUCER) == ProducerSequence(PRODUCER, PRODUCER_EPOCH_MAX, 0)
    sequences.begin_next_epoch()
    assert sequences.assign(1, 8) == ProducerSequence(8, 0, 0)


def test_a_failed_batch_leaves_a_gap_until_a_later_one_is_acknowledged() -> None:  # C11
    sequences = Sequences()
    sequences.assign(6, PRODUCER)
    sequences.on_failed(2, 2)
    assert sequences.may_have_gap
    sequences.on_acknowledged(0, 2)
    assert sequences.may_have_gap
    sequences.on_acknowledged(4, 2)
    assert not sequences.may_have_gap


def test_a_failed_batch_before_an_acknowledged_one_leaves_no_gap() -> None:  # C11
    sequences = Sequences()
    sequences.assign(6, PRODUCER)
    sequences.on_acknowledged(2, 2)
    sequences.on_failed(0, 2)
    assert not sequences.may_have_gap


@pytest.mark.parametrize("is_known", [True, False])
def test_nothing_gets_a_sequence_behind_a_gap(is_known: bool) -> None:  # C11
    sequences = Sequences()
    sequences.assign(6, PRODUCER)
    if is_known:
        sequences.needs_new_epoch = True
    else:
        sequences.on_failed(2, 2)
    with pytest.raises(InvariantBroken, match="before its next epoch"):
        sequences.assign(1, PRODUCER)
    sequences.begin_next_epoch()
    assert sequences.assign(1, PRODUCER) == ProducerSequence(PRODUCER, 1, 0)


# ---- What goes when ----


def full_batches(count: int, *, in_flight_max: int = 5) -> tuple[Accumulator, list[ProducerBatch]]:
    """So many batches of one record for one partition, the first acknowledged, so that the epoch is known."""
    limits = Limits(RECORD_BYTES + 256, 1 << 20, 0, 1_000, is_idempotent=True, in_flight_max=in_flight_max)
    filling = new_accumulator(limits, partitions=1, producer_id=PRODUCER)
    batches = []
    for number in range(count + 1):
        future = filling.try_append(PreparedRecord("orders", 0, b"%d" % number, RECORD_BYTES), Moment(0, 1))
        assert future is not None
        future.batch.close()
        batches.append(future.batch)
    start(filling, batches[0])
    end(filling, batches[0])
    return filling, batches[1:]


def start(filling: Accumulator, *expected: ProducerBatch, now_ms: float = 0) -> None:
    """Starts what is ready, until nothing is, which must be these."""
    started = []
    while ready := filling.ready(now_ms):
        for batch in ready:
            start_batch(filling, batch)
            started.append(batch)
        if len(started) >= len(expected):
            break
    assert started == list(expected)


def end(filling: Accumulator, batch: ProducerBatch, *, is_acknowledged: bool = True) -> None:
    filling.finish((batch,), is_acknowledged=is_acknowledged)


def sequences_of(batches: list[ProducerBatch]) -> list[tuple[int, int] | None]:
    """Epoch and sequence."""
    return [each.sequence and (each.sequence.producer_epoch, each.sequence.base_sequence) for each in batches]


def test_full_batches_of_a_partition_go_without_waiting_up_to_the_limit() -> None:  # C7, C11
    filling, batches = full_batches(7)
    start(filling, *batches[:5])
    assert filling.ready(0) == []
    assert sequences_of(batches[:5]) == [(0, n) for n in range(1, 6)]
    end(filling, batches[1])  # answers may come in any order
    assert filling.ready(0) == []  # or the log would not know the first one again
    end(filling, batches[0])
    start(filling, *batches[5:7])


def test_the_first_batch_of_a_producer_goes_alone() -> None:  # C5
    limits = Limits(1_000, 1 << 20, 0, 1_000, is_idempotent=True, in_flight_max=5)
    filling = new_accumulator(limits, partitions=1, producer_id=PRODUCER)
    futures = []
    for _ in range(2):
        futures.append(filling.try_append(PreparedRecord("orders", 0, b"x", 600), Moment(0, 1)))
    batches = [each.batch for each in futures if each]
    batches[1].close()
    start(filling, batches[0])
    assert filling.ready(0) == []
    end(filling, batches[0])
    assert filling.ready(0) == [batches[1]]


def test_a_batch_that_can_still_grow_does_not_follow_another() -> None:
    filling, (first, second) = full_batches(2)
    second.state = BatchState.FILLING
    start(filling, first)
    assert filling.ready(1_000) == []
    second.is_urgent = True
    assert filling.ready(0) == [second]


def test_retries_keep_their_sequence_and_go_in_order_one_after_the_other() -> None:  # C11
    filling, batches = full_batches(4)
    start(filling, *batches[:3])
    for batch in (batches[1], batches[0], batches[2]):
        filling.defer(batch, NetworkException("lost"), 0)
    before = sequences_of(batches)
    start(filling, batches[0])
    assert filling.ready(0) == []
    end(filling, batches[0])
    start(filling, batches[1])
    end(filling, batches[1])
    start(filling, batches[2], batches[3])  # nothing awaits a retry any more: new ones follow again
    assert sequences_of(batches)[:3] == before[:3]


def test_out_of_order_behind_a_batch_that_waits_changes_nothing() -> None:  # C11
    filling, batches = full_batches(3)
    start(filling, *batches)
    filling.defer(batches[0], NotEnoughReplicas("as told"), 0)
    for batch in batches[1:]:
        filling.defer(batch, OutOfOrderSequence("as told"), 0)
    assert sequences_of(batches) == [(0, 1), (0, 2), (0, 3)]
    assert filling.ready(0) == [batches[0]]


def test_out_of_order_of_the_first_batch_begins_an_epoch_once_nothing_is_in_flight() -> None:  # C11
    filling, batches = full_batches(3)
    start(filling, *batches)
    filling.defer(batches[0], OutOfOrderSequence("as told"), 0)
    assert filling.ready(0) == []
    filling.defer(batches[1], OutOfOrderSequence("as told"), 0)
    assert sequences_of(batches) == [(0, 1), (0, 2), (0, 3)]
    filling.defer(batches[2], OutOfOrderSequence("as told"), 0)
    assert sequences_of(batches) == [None] * 3
    start(filling, batches[0])
    assert filling.ready(0) == []
    end(filling, batches[0])
    start(filling, *batches[1:])
    assert sequences_of(batches) == [(1, 0), (1, 1), (1, 2)]


def test_out_of_order_of_a_batch_that_did_not_go_first_is_tried_again_in_its_epoch() -> None:  # C3, C11
    filling, batches = full_batches(2)
    start(filling, *batches)
    filling.defer(batches[0], NetworkException("lost"), 0)
    start(filling, batches[0])
    end(filling, batches[0])
    # Answered long ago; a copy that came later may be in the log.
    filling.defer(batches[1], OutOfOrderSequence("as told"), 0)
    assert sequences_of(batches)[1] == (0, 2)
    start(filling, batches[1])  # this time it is alone
    filling.defer(batches[1], OutOfOrderSequence("as told"), 0)
    assert sequences_of(batches)[1] is None


def test_behind_a_batch_that_failed_retries_go_on_and_new_ones_wait() -> None:  # C11
    filling, batches = full_batches(3)
    for batch in batches[:2]:
        start_batch(filling, batch)
    end(filling, batches[0], is_acknowledged=False)
    assert filling.ready(0) == []
    filling.defer(batches[1], NetworkException("lost"), 0)
    start(filling, batches[1])
    assert sequences_of(batches) == [(0, 1), (0, 2), None]
    end(filling, batches[1])  # so the log has the failed one too
    start(filling, batches[2])
    assert sequences_of(batches)[2] == (0, 3)


def test_a_gap_with_nothing_behind_it_begins_an_epoch() -> None:  # C11
    filling, batches = full_batches(2)
    start_batch(filling, batches[0])
    end(filling, batches[0], is_acknowledged=False)
    start(filling, batches[1])
    assert sequences_of(batches)[1] == (1, 0)


def test_a_batch_that_was_never_sent_leaves_no_gap() -> None:  # C11
    filling, batches = full_batches(2)
    end(filling, batches[0], is_acknowledged=False)
    start(filling, batches[1])
    assert sequences_of(batches)[1] == (0, 1)


def test_a_new_producer_id_is_asked_for_when_the_epochs_are_used_up() -> None:  # C11, C12
    filling, batches = full_batches(2)
    start_batch(filling, batches[0])
    assert batches[0].sequence is not None
    queue: PartitionQueue = filling.topics.queue_of(batches[0])
    queue.sequences.producer_epoch = PRODUCER_EPOCH_MAX
    end(filling, batches[0], is_acknowledged=False)
    assert filling.identity.is_missing
    filling.identity.producer_id = 8
    start_batch(filling, batches[1])
    assert batches[1].sequence == ProducerSequence(8, 0, 0)


def test_without_idempotence_one_batch_is_in_flight_and_none_has_a_sequence() -> None:
    filling = new_accumulator(Limits(1_000, 1 << 20, 0, 1_000), partitions=1)
    futures = [filling.try_append(PreparedRecord("orders", 0, b"x", 600), Moment(0, 1)) for _ in range(2)]
    batches = [each.batch for each in futures if each]
    batches[1].close()
    assert not filling.identity.is_missing
    start(filling, batches[0])
    assert filling.ready(0) == []
    assert sequences_of(batches) == [None, None]


# ---- The model ----


class Call:
    """A batch on its way: what was sent, and what the broker made of it."""

    def __init__(self, batch: ProducerBatch) -> None:
        self.batch = batch
        self.sent = RecordBatch(batch.encode(Codec.NONE, 1 << 20).copy())
        self.is_executed = False
        self.error: ApiError | None = None
        self.base_offset = -1


class Delivery:
    """The producer's brain against a real log, over a connection that loses calls and answers."""

    def __init__(self, random: Random) -> None:
        self.random = random
        limits = Limits(400, 1 << 20, 0, 200, is_idempotent=True, in_flight_max=random.randint(1, 5))
        self.accumulator = new_accumulator(limits, partitions=1, producer_id=PRODUCER)
        self.in_flight_max = limits.in_flight_max
        self.log: Log = new_log()[1]
        self.calls: list[Call] = []  # in the order of their sending
        self.now_ms = 0.0
        self.number = 0
        self.acknowledged: dict[int, bytes] = {}

    def step(self) -> None:
        acts = [self.send_records, self.pump, self.pump, self.arrive, self.arrive, self.arrive, self.answer]
        self.random.choice(acts)()

    def send_records(self) -> None:
        for _ in range(self.random.choice((1, 2, 6, 12))):
            future = self.accumulator.try_append(
                PreparedRecord("orders", 0, b"%d" % self.number, 60), Moment(self.now_ms, 1)
            )
            assert future is not None
            self.number += 1

    def pump(self) -> None:
        self.now_ms += self.random.choice((1, 1, 1, 1, 2, 20, 100))
        for batch in expired(self.accumulator, self.now_ms):
            self.accumulator.finish((batch,), is_acknowledged=False)
        while ready := self.accumulator.ready(self.now_ms):
            for batch in ready:
                start_batch(self.accumulator, batch)
                self.calls.append(Call(batch))

    def arrive(self) -> None:
        """The next call reaches the broker, or the connection breaks, and with it all behind that call."""
        waiting = [each for each in self.calls if not each.is_executed]
        fate = self.random.choice(["executed"] * 7 + ["refused", "too large", "lost"])
        if fate == "lost":
            for call in waiting:
                self.end(call, NetworkException("lost"))
        elif waiting:
            self.execute(
                waiting[0], {"refused": NotEnoughReplicas(), "too large": RecordTooLarge()}.get(fate)
            )

    def execute(self, call: Call, error: ApiError | None = None) -> None:
        call.is_executed, call.error = True, error
        if error is None:
            try:
                call.base_offset = self.log.append_as_leader([call.sent], 0, now_ms=0).first_offset
            except ApiError as refusal:
                call.error = refusal

    def answer(self) -> None:
        """Answers come in any order, or not at all."""
        executed = [each for each in self.calls if each.is_executed]
        if executed:
            call = self.random.choice([*executed, executed[-1], executed[-1]])
            self.end(call, NetworkException("lost") if self.random.random() < 0.2 else call.error)

    def end(self, call: Call, error: ApiError | None) -> None:
        """As the sender does."""
        self.calls.remove(call)
        is_out_of_order = isinstance(error, OutOfOrderSequence)
        if error is None:
            self.accumulator.finish((call.batch,), is_acknowledged=True)
            for offset, value in enumerate(decode(call.sent).values_list(), call.base_offset):
                self.acknowledged[offset] = value or b""
            return
        if error.retriable or is_out_of_order:
            self.accumulator.defer(call.batch, error, self.now_ms + 1)
        else:
            self.accumulator.finish((call.batch,), is_acknowledged=False)

    def finish(self) -> None:
        """From now on nothing goes wrong, and everything ends."""
        for _ in range(200):
            self.pump()
            for call in [each for each in self.calls if not each.is_executed]:
                self.execute(call)
            for call in list(self.calls):
                self.end(call, call.error)
            if not any(map(len, self.accumulator.batches())):
                return
        raise AssertionError(f"never ends: {list(self.accumulator.batches())}")

    def check_in_flight(self) -> None:
        """No more are under way than a broker knows again."""
        sent = [each for each in self.accumulator.batches() if each.sequence is not None]
        assert len(sent) <= self.in_flight_max
        assert list(self.accumulator.batches())[: len(sent)] == sent

    def check_log(self) -> None:
        """Each record is there once at most, in the order of the sends; what was acknowledged is where it was said."""
        found = [value for batch in read_batches(self.log) for value in decode(batch).values_list() if value]
        numbers = [int(value) for value in found]
        assert numbers == sorted(set(numbers))
        assert {offset: found[offset] for offset in self.acknowledged} == self.acknowledged


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_lost_each_record_is_in_the_log_once_and_in_order(seed: int) -> None:  # C3, C5, C7, C11
    delivery = Delivery(Random(seed))
    for _ in range(120):
        delivery.step()
        delivery.check_in_flight()
    delivery.finish()
    delivery.check_log()
    assert delivery.acknowledged
