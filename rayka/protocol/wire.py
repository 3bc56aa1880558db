"""The wire format of calls: ordered connections, messages as bytes, and frames.

**Connection.** One ordered connection joins a caller and a node, over a lane that neither keeps order nor reports
every loss. A call carries (caller id, connection epoch, number). The receiver starts the calls of one connection in
number order, holds a call that arrives after a gap, and closes the epoch when the gap is not filled soon. After a
failure the caller opens a higher epoch, and the receiver refuses calls of lower ones, so no late call starts (design
§2). Kafka uses TCP for this. The simulator attacks below this layer: it loses, delays, duplicates and reorders
numbered calls.

**Message.** MessagePack holds the structure, a payload beside it holds the records. A field of type `numpy.ndarray`
(uint8) does not go through MessagePack: the structure holds its length, and its bytes lie in the payload, in the
order of the fields. Small arrays are joined to one payload, large ones stay apart. So a response of megabytes crosses
Ray as one object that arrives without a copy, and every batch in it stays a view. Batches are multiples of 8 bytes
long, so views stay aligned. A sender may put a slice of a file in the place of an array: a lane that can sends the
slice from the file, any other lane reads it at the last moment, and the receiver gets an array either way.

**Frame.** Two bodies and their records as one `bytes`, for lanes that carry nothing else well. The records begin at a
multiple of 8 bytes, so every batch decodes from a view.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
import numpy as np

from rayka.errors import ApiError, ErrorCode, InvalidRequest, InvariantBroken, NotController, error_for
from rayka.ids import NO_EPOCH, NO_NODE, ZERO_ID
from rayka.ports import FileSlice, Message

# Callers that a receiver remembers; the one that called least recently is forgotten.
CALLERS_MAX = 10_000
# Calls of one caller that wait for a gap before them.
HELD_CALLS_MAX = 1_000
JOINED_BYTES_MAX = 512 << 10
# Arrays of this size on average cost less joined than one by one, for any number of them.
SMALL_BYTES = 4 << 10
NO_BYTES = np.empty(0, dtype=np.uint8)
# Made once: a comparison with the type `np.uint8` makes a dtype each time.
_BYTE = np.dtype(np.uint8)
# Of a frame: sizes of the two bodies; the rest is records.
_SIZES = Struct("<II")
_ALIGNMENT = 8

MessageT = TypeVar("MessageT", bound=Message)
Part = np.ndarray | FileSlice
# A list where a part is a slice.
Payload = np.ndarray | bytes | list[Part]


# ---- Connections ---------------------------------------------------------------------------------------------------


class CallNumber(Message, frozen=True, array_like=True, gc=False):
    """The place of one call among the calls of its caller to one node."""

    caller_id: UUID
    epoch: int
    number: int
    # Every call below was answered, or its caller no longer waits for it. A receiver that does not know the caller (the
    # receiver restarted, or forgot the caller) begins here instead of waiting for calls that never come.
    first_pending: int = 0


class Outbound:
    """Numbers the calls of one connection, at the caller's end."""

    __slots__ = ("_caller_id", "_epoch", "_next_number", "_pending")

    def __init__(self, caller_id: UUID) -> None:
        self._caller_id = caller_id
        self._epoch = 0
        self._next_number = 0
        # Numbers of this epoch's open calls, the lowest first.
        self._pending: dict[int, None] = {}

    def next_call(self) -> CallNumber:
        number = self._next_number
        self._next_number += 1
        self._pending[number] = None
        return CallNumber(self._caller_id, self._epoch, number, next(iter(self._pending)))

    def on_answer(self, call: CallNumber) -> None:
        """Ends a call that was answered, or that its caller no longer waits for."""
        if call.epoch == self._epoch:
            self._pending.pop(call.number, None)

    def on_failure(self, call: CallNumber) -> None:
        """Opens a new epoch; once, however many calls of the failed epoch report the failure."""
        if call.epoch == self._epoch:
            self._epoch += 1
            self._next_number = 0
            self._pending.clear()


class Admission(Enum):
    """The receiver's decision about a call that arrived."""

    START = "start"
    HOLD = "hold"
    REFUSE = "refuse"


@dataclass(slots=True)
class _Caller:
    # Calls of lower epochs are refused.
    epoch: int
    # The number of the call that starts next.
    expected: int
    # Numbers above `expected` of calls that have arrived.
    held: set[int] = field(default_factory=set)


class Inbound:
    """Puts the calls of all connections in order, at the receiver's end.

    Invariant: the calls of one caller start in increasing (epoch, number), each at most once.
    """

    def __init__(self) -> None:
        self._callers: OrderedDict[UUID, _Caller] = OrderedDict()

    def admit(self, call: CallNumber) -> Admission:
        """START: the call starts now, then ask `next_held`. HOLD: the call waits for its turn. REFUSE: the call is
        late or repeated, its epoch is closed, or too many calls are held.
        """
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
        """The held call whose turn it is now, to be woken and then started by `start_held`; None: there is none."""
        caller = self._callers.get(caller_id)
        if caller is None or caller.expected not in caller.held:
            return None
        return CallNumber(caller_id, caller.epoch, caller.expected)

    def start_held(self, call: CallNumber) -> bool:
        """Starts a held call. False: its epoch was closed after the call was woken."""
        caller = self._callers.get(call.caller_id)
        if caller is None or (caller.epoch, caller.expected) != (call.epoch, call.number):
            return False
        caller.held.discard(call.number)
        caller.expected += 1
        return True

    def close(self, call: CallNumber) -> None:
        """Closes the epoch of a held call, because the gap before it was not filled in time."""
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


# ---- Messages ------------------------------------------------------------------------------------------------------


class Failure(Message, frozen=True, array_like=True):
    """The answer of any API to a request that failed as a whole."""

    error_code: ErrorCode
    error_message: str = ""
    # Beside NOT_CONTROLLER: the leader and its epoch, where the node knows them.
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    # Beside NOT_CONTROLLER: the request may have been executed.
    may_have_run: bool = False

    def error(self) -> ApiError:
        """The exception that this failure stands for."""
        if self.error_code is ErrorCode.NOT_CONTROLLER:
            return NotController(
                self.error_message, self.leader_id, self.leader_epoch, may_have_run=self.may_have_run
            )
        return error_for(self.error_code, self.error_message)

    @classmethod
    def of(cls, error: ApiError) -> "Failure":
        """The failure that stands for an exception."""
        if isinstance(error, NotController):
            return cls(error.code, str(error), error.leader_id, error.leader_epoch, error.may_have_run)
        return cls(error.code, str(error))


class RequestHeader(Message, frozen=True, array_like=True):
    """Precedes every request."""

    version: int = 0
    call: CallNumber = CallNumber(ZERO_ID, 0, 0)
    # How long the caller waits for the answer.
    timeout_ms: int = 0


class Encoded(NamedTuple):
    """An encoded message."""

    # The structure.
    body: bytes
    # The arrays and slices, in the order of the fields.
    buffers: list[Part]

    def payload(self) -> Payload:
        """The buffers as one array; a list where one is a slice, or where joining would copy more than it saves."""
        if not self.buffers:
            return NO_BYTES
        return _joined(self.buffers) if all(map(_is_array, self.buffers)) else self.buffers


def encode(message: Message) -> Encoded:
    """Encodes a message; refers to its arrays and does not copy them."""
    buffers: list[Part] = []

    def set_aside(value: Any) -> Any:
        if not _is_array(value) and not isinstance(value, FileSlice):
            raise InvariantBroken(f"a message holds {value!r}, which is no array of bytes")
        buffers.append(value)
        return value.size

    return Encoded(msgspec.msgpack.encode(message, enc_hook=set_aside), buffers)


def decode(message_type: type[MessageT], body: bytes, payload: Payload = NO_BYTES) -> MessageT:
    """Decodes a message, whose arrays are views of the payload. Raises InvalidRequest when the bytes do not fit."""
    take: Callable[[type, Any], np.ndarray]
    if payload is NO_BYTES:
        take = _take_nothing
    elif isinstance(payload, list) and all(map(_is_array, payload)):
        take = _take_arrays(payload)
    elif not isinstance(payload, list) and (isinstance(payload, bytes) or _is_array(payload)):
        take = _take_bytes(payload)
    else:
        raise InvalidRequest(f"payload: expected bytes, or arrays of bytes, found {type(payload).__name__}")
    try:
        return msgspec.msgpack.decode(body, type=message_type, dec_hook=take)
    # Deeply nested arrays are a RecursionError.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"expected a {message_type.__name__}: {error}; check that both sides run the same version of rayka"
        ) from error


def in_memory(payload: Payload | None) -> Payload | None:
    """Reads the slices of an answer's payload, for a lane that cannot send files. Raises StorageError."""
    if not isinstance(payload, list) or not any(isinstance(each, FileSlice) for each in payload):
        return payload
    return _joined([each.read() if isinstance(each, FileSlice) else each for each in payload])


def _joined(arrays: list[Part]) -> Payload:
    if len(arrays) == 1:
        # Callers pass no slices.
        return arrays[0]  # type: ignore[return-value]
    joined_bytes_max = max(JOINED_BYTES_MAX, len(arrays) * SMALL_BYTES)
    is_large = sum(each.size for each in arrays) > joined_bytes_max
    return arrays if is_large else np.concatenate(arrays)  # type: ignore[arg-type]


def payload_bytes(payload: Payload) -> int:
    """The size of a payload: bytes of records beside a message."""
    return sum(each.size for each in payload) if isinstance(payload, list) else len(payload)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == _BYTE and value.ndim == 1


# Each of these gives msgspec the array of one field after another, by the size that the structure holds. msgspec adds
# to a ValueError in which field of the message it was raised.


def _take_nothing(_: type, size: Any) -> np.ndarray:
    if type(size) is not int or size != 0:
        raise ValueError(f"expected {size!r} bytes of records, found a message without a payload")
    return NO_BYTES


def _take_bytes(payload: np.ndarray | bytes) -> Callable[[type, Any], np.ndarray]:
    """Cuts a joined payload."""
    data = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, dtype=np.uint8)
    position = 0

    def take(_: type, size: Any) -> np.ndarray:
        nonlocal position
        if type(size) is not int or size < 0 or position + size > data.size:
            raise ValueError(
                f"expected {size!r} bytes of records at byte {position} of the payload, found {data.size} bytes in all"
            )
        position += size
        return data[position - size : position]

    return take


def _take_arrays(arrays: list[Part]) -> Callable[[type, Any], np.ndarray]:
    """Gives the arrays of a payload that was not joined."""
    remaining = iter(arrays)

    def take(_: type, size: Any) -> np.ndarray:
        array = next(remaining, NO_BYTES)
        if array.size != size:
            raise ValueError(
                f"expected {size!r} bytes of records in the payload's next array, found {array.size}"
            )
        # No slice arrives.
        return array  # type: ignore[return-value]

    return take


# ---- Frames --------------------------------------------------------------------------------------------------------


def frame(first: bytes, second: bytes, records: np.ndarray = NO_BYTES) -> bytes:
    """Joins two bodies and their records."""
    padding = bytes(-(_SIZES.size + len(first) + len(second)) % _ALIGNMENT)
    return b"".join((_SIZES.pack(len(first), len(second)), first, second, padding, records.data))


def unframe(data: object) -> tuple[bytes, bytes, np.ndarray]:
    """The two bodies of a frame, and its records as a view. Raises InvalidRequest when the data are no frame."""
    if not isinstance(data, bytes) or len(data) < _SIZES.size:
        found = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise InvalidRequest(f"frame: expected at least {_SIZES.size} bytes, found {found}")
    first_size, second_size = _SIZES.unpack_from(data)
    middle = _SIZES.size + first_size
    end = middle + second_size
    if end > len(data):
        raise InvalidRequest(f"frame: expected {end} bytes, found {len(data)}")
    records = np.frombuffer(data, dtype=np.uint8)[end + -end % _ALIGNMENT :]
    return data[_SIZES.size : middle], data[middle:end], records
