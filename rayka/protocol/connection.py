"""One ordered connection between a caller and a node, over a lane that neither keeps order nor reports
every loss.

A call carries (caller incarnation, connection epoch, number). The receiver starts one connection's calls in
number order, holds those after a gap, and closes the epoch when the gap is not filled soon. After a failure
the caller opens a higher epoch; calls of lower ones are refused, so none of them starts late (design §2).
Kafka has TCP for this.

The simulator attacks below this layer: it loses, delays, duplicates and reorders what is numbered here.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from rayka.ports import Message

CALLERS_MAX = 10_000
HELD_CALLS_MAX = 1_000


class CallNumber(Message, frozen=True, array_like=True, gc=False):
    """The place of one call among those of its caller to this node.

    Every call below `first_pending` was answered, or its caller no longer waits: a receiver that does not
    know the caller (it restarted, or forgot him) begins there instead of waiting for calls that never come.
    """

    caller_id: UUID
    epoch: int
    number: int
    first_pending: int = 0


class Outbound:
    """The caller's end of one connection: numbers its calls."""

    __slots__ = ("_caller_id", "_epoch", "_next_number", "_pending")

    def __init__(self, caller_id: UUID) -> None:
        self._caller_id = caller_id
        self._epoch = 0
        self._next_number = 0
        self._pending: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"<Outbound epoch={self._epoch} next={self._next_number} pending={len(self._pending)}>"

    def next_call(self) -> CallNumber:
        number = self._next_number
        self._next_number += 1
        self._pending[number] = None
        return CallNumber(self._caller_id, self._epoch, number, next(iter(self._pending)))

    def on_answer(self, call: CallNumber) -> None:
        """The call was answered, or its caller no longer waits for it."""
        if call.epoch == self._epoch:
            self._pending.pop(call.number, None)

    def on_failure(self, call: CallNumber) -> None:
        """Opens a new epoch, once however many calls of the failed one report it."""
        if call.epoch == self._epoch:
            self._epoch += 1
            self._next_number = 0
            self._pending.clear()


class Admission(Enum):
    """What to do with a call that arrived."""

    START = "start"
    HOLD = "hold"
    REFUSE = "refuse"


@dataclass(slots=True)
class _Caller:
    epoch: int
    expected: int
    held: set[int] = field(default_factory=set)


class Inbound:
    """The receiver's end of all its connections.

    Invariant: of one caller, calls start in increasing (epoch, number), each at most once.
    """

    def __init__(self) -> None:
        self._callers: OrderedDict[UUID, _Caller] = OrderedDict()

    def admit(self, call: CallNumber) -> Admission:
        """START now (then ask `next_held`), HOLD until its turn, or REFUSE what is late, repeated or
        closed."""
        caller = self._caller(call)
        if call.epoch > caller.epoch:
            caller.epoch, caller.expected = call.epoch, 0
            caller.held.clear()
        if call.epoch < caller.epoch or call.number < caller.expected or call.number in caller.held:
            return Admission.REFUSE
        if call.number == caller.expected:
            caller.expected += 1
            return Admission.START
        if len(caller.held) >= HELD_CALLS_MAX:
            return Admission.REFUSE
        caller.held.add(call.number)
        return Admission.HOLD

    def next_held(self, caller_id: UUID) -> CallNumber | None:
        """The held call whose turn it is now: wake it, and let it `start_held`. None when there is none."""
        caller = self._callers.get(caller_id)
        if caller is None or caller.expected not in caller.held:
            return None
        return CallNumber(caller_id, caller.epoch, caller.expected)

    def start_held(self, call: CallNumber) -> bool:
        """The held call starts now; False when its epoch was closed since it was woken."""
        caller = self._callers.get(call.caller_id)
        if caller is None or (caller.epoch, caller.expected) != (call.epoch, call.number):
            return False
        caller.held.discard(call.number)
        caller.expected += 1
        return True

    def close(self, call: CallNumber) -> None:
        """The gap before a held call was not filled in time: nothing more of that epoch starts."""
        caller = self._callers.get(call.caller_id)
        if caller is not None and caller.epoch == call.epoch:
            caller.epoch, caller.expected = call.epoch + 1, 0
            caller.held.clear()

    def _caller(self, call: CallNumber) -> _Caller:
        caller = self._callers.get(call.caller_id)
        if caller is None:
            caller = self._callers[call.caller_id] = _Caller(call.epoch, call.first_pending)
            if len(self._callers) > CALLERS_MAX:
                self._callers.popitem(last=False)
        self._callers.move_to_end(call.caller_id)
        return caller
