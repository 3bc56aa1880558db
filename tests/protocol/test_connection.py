"""One ordered connection over a lane that loses, repeats and reorders: calls start in order, each at most once."""

from collections.abc import Callable
from random import Random
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.ids import random_uuid
from rayka.protocol.wire import CALLERS_MAX, HELD_CALLS_MAX, Admission, CallNumber, Inbound, Outbound

CALLER = UUID(int=7)


def call(number: int, epoch: int = 0, first_pending: int = 0) -> CallNumber:
    return CallNumber(CALLER, epoch, number, first_pending)


class Receiver:
    """A node that starts calls as its inbox does: a held call is woken first, and starts a little later."""

    def __init__(self) -> None:
        self._inbound = Inbound()
        self._woken: list[CallNumber] = []
        self.held: list[CallNumber] = []
        self.started: list[tuple[int, int]] = []

    def receive(self, arrived: CallNumber) -> None:
        admission = self._inbound.admit(arrived)
        if admission is Admission.START:
            self._start(arrived)
        elif admission is Admission.HOLD:
            self.held.append(arrived)

    def run_woken(self) -> None:
        for each in self._woken[:1]:
            self._woken.remove(each)
            if self._inbound.start_held(each):
                self._start(each)

    def run_all_woken(self) -> None:
        while self._woken:
            self.run_woken()

    def close(self, arrived: CallNumber) -> None:
        self._inbound.close(arrived)

    def _start(self, each: CallNumber) -> None:
        self.started.append((each.epoch, each.number))
        following = self._inbound.next_held(CALLER)
        if following is not None:
            self._woken.append(following)


def test_calls_in_order_start_at_once() -> None:
    inbound = Inbound()
    assert [inbound.admit(call(number)) for number in range(3)] == [Admission.START] * 3


def test_a_call_after_a_gap_is_held_until_the_gap_is_filled() -> None:
    receiver = Receiver()
    for number in (2, 1, 0):
        receiver.receive(call(number))
    receiver.run_all_woken()
    assert receiver.started == [(0, 0), (0, 1), (0, 2)]


def test_a_new_call_does_not_overtake_a_held_one_that_was_woken() -> None:
    receiver = Receiver()
    receiver.receive(call(1))
    receiver.receive(call(0))  # wakes 1, which has not run yet
    receiver.receive(call(2))
    receiver.run_all_woken()
    assert receiver.started == [(0, 0), (0, 1), (0, 2)]


def test_a_repeated_call_is_refused_whether_started_or_held() -> None:
    inbound = Inbound()
    inbound.admit(call(0))
    inbound.admit(call(2))
    assert [inbound.admit(call(0)), inbound.admit(call(2))] == [Admission.REFUSE] * 2


def test_after_a_failure_nothing_of_the_older_epoch_starts() -> None:
    outbound, inbound = Outbound(CALLER), Inbound()
    first, late = outbound.next_call(), outbound.next_call()
    inbound.admit(first)
    outbound.on_failure(first)
    assert inbound.admit(outbound.next_call()) is Admission.START
    assert inbound.admit(late) is Admission.REFUSE


def test_many_failures_of_one_epoch_open_one_new_epoch() -> None:
    outbound = Outbound(CALLER)
    failed = [outbound.next_call() for _ in range(3)]
    for each in failed:
        outbound.on_failure(each)
    assert outbound.next_call() == call(0, epoch=1)


def test_a_closed_gap_refuses_what_was_held_and_what_still_comes() -> None:
    receiver = Receiver()
    receiver.receive(call(1))
    receiver.close(call(1))
    for each in (call(0), call(1), call(2)):
        receiver.receive(each)
    assert receiver.started == []
    receiver.receive(call(0, epoch=1))
    assert receiver.started == [(1, 0)]


def test_a_restarted_receiver_goes_on_where_the_answered_calls_end() -> None:
    outbound = Outbound(CALLER)
    for _ in range(5):
        outbound.on_answer(outbound.next_call())
    assert Inbound().admit(outbound.next_call()) is Admission.START


def test_a_restarted_receiver_still_waits_for_calls_that_were_not_answered() -> None:
    outbound, inbound = Outbound(CALLER), Inbound()
    outbound.on_answer(outbound.next_call())
    unanswered, following = outbound.next_call(), outbound.next_call()
    assert inbound.admit(following) is Admission.HOLD
    assert inbound.admit(unanswered) is Admission.START


def test_the_number_of_held_calls_is_bounded() -> None:
    inbound = Inbound()
    admissions = [inbound.admit(call(number)) for number in range(1, HELD_CALLS_MAX + 2)]
    assert admissions == [Admission.HOLD] * HELD_CALLS_MAX + [Admission.REFUSE]


def test_the_least_recent_of_too_many_callers_is_forgotten() -> None:
    inbound, random = Inbound(), Random(1)
    for _ in range(CALLERS_MAX + 1):
        inbound.admit(CallNumber(random_uuid(random), 0, 0))
    assert len(inbound._callers) == CALLERS_MAX


ACTIONS = st.sampled_from(("call", "deliver", "repeat", "lose", "fail", "answer", "run", "close"))


@given(st.lists(ACTIONS, max_size=80), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_calls_start_in_order_and_at_most_once_whatever_the_lane_does(
    actions: list[str], random: Random
) -> None:
    outbound, receiver = Outbound(CALLER), Receiver()
    on_the_way: list[CallNumber] = []
    unanswered: list[CallNumber] = []

    def one_of(calls: list[CallNumber], do: Callable[[CallNumber], object]) -> None:
        if calls:
            do(calls[random.randrange(len(calls))])

    def deliver(each: CallNumber) -> None:
        on_the_way.remove(each)
        receiver.receive(each)

    for action in actions:
        if action == "call":
            made = outbound.next_call()
            on_the_way.append(made)
            unanswered.append(made)
        elif action == "deliver":
            one_of(on_the_way, deliver)
        elif action == "repeat":
            one_of(on_the_way, receiver.receive)
        elif action == "lose":
            one_of(on_the_way, on_the_way.remove)
        elif action == "fail":
            one_of(unanswered, outbound.on_failure)
        elif action == "answer":
            one_of(
                [each for each in unanswered if (each.epoch, each.number) in receiver.started],
                outbound.on_answer,
            )
        elif action == "run":
            receiver.run_woken()
        else:
            one_of(receiver.held, receiver.close)
    assert receiver.started == sorted(set(receiver.started))


@given(st.permutations(range(8)))
@settings(max_examples=100, deadline=None)
def test_a_lane_that_only_reorders_loses_nothing(order: list[int]) -> None:
    receiver = Receiver()
    for number in order:
        receiver.receive(call(number))
        receiver.run_all_woken()
    assert receiver.started == [(0, number) for number in range(8)]
