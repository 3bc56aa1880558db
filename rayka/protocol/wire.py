"""Messages as bytes: MessagePack for the structure, and beside it a payload for the records.

Fields of type `numpy.ndarray` (uint8) do not go through MessagePack: the structure holds their lengths, and their bytes
follow each other in the payload, in order: joined while they or their sum are small, as they are beyond. So a response
of megabytes crosses Ray as one object that arrives without a copy, and every batch in it stays a view. Batches are
multiples of 8 bytes long, so views stay aligned. In place of an array a sender may give a slice of a file: a lane that
can sends it from there, any other reads it at the last moment; it arrives as an array either way.
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

# One ordered connection between a caller and a node, over a lane that neither keeps order nor reports
# every loss.
#
# A call carries (caller incarnation, connection epoch, number). The receiver starts one connection's calls in
# number order, holds those after a gap, and closes the epoch when the gap is not filled soon. After a failure
# the caller opens a higher epoch; calls of lower ones are refused, so none of them starts late (design §2).
# Kafka has TCP for this.
#
# The simulator attacks below this layer: it loses, delays, duplicates and reorders what is numbered here.


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


MessageT = TypeVar("MessageT", bound=Message)
Part = np.ndarray | FileSlice
Payload = np.ndarray | bytes | list[Part]  # with slices always a list
JOINED_BYTES_MAX = 512 << 10
# Buffers of this size on average cost less joined than one by one, for any number of them.
SMALL_BYTES = 4 << 10
NO_BYTES = np.empty(0, dtype=np.uint8)
_BYTE = np.dtype(np.uint8)  # a comparison with the type would make this first


class Failure(Message, frozen=True, array_like=True):
    """The answer to a request that failed as a whole, whatever its API; NOT_CONTROLLER names the leader."""

    error_code: ErrorCode
    error_message: str = ""
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    may_have_run: bool = False

    def error(self) -> ApiError:
        if self.error_code is ErrorCode.NOT_CONTROLLER:
            return NotController(
                self.error_message, self.leader_id, self.leader_epoch, may_have_run=self.may_have_run
            )
        return error_for(self.error_code, self.error_message)

    @classmethod
    def of(cls, error: ApiError) -> "Failure":
        if isinstance(error, NotController):
            return cls(error.code, str(error), error.leader_id, error.leader_epoch, error.may_have_run)
        return cls(error.code, str(error))


class RequestHeader(Message, frozen=True, array_like=True):
    """What goes before every request: its version, its place in the caller's connection, and how long it may take."""

    version: int = 0
    call: CallNumber = CallNumber(ZERO_ID, 0, 0)
    timeout_ms: int = 0


class Encoded(NamedTuple):
    """A message on its way: the structure, and the buffers of its records in order."""

    body: bytes
    buffers: list[Part]

    def payload(self) -> Payload:
        """The buffers as one array, or as they are where joining them would copy more than it saves."""
        if not self.buffers:
            return NO_BYTES
        return _joined(self.buffers) if all(map(_is_array, self.buffers)) else self.buffers


def encode(message: Message) -> Encoded:
    """The message as bytes; its arrays are referred to, not copied."""
    buffers: list[Part] = []

    def set_aside(value: Any) -> Any:
        if not _is_array(value) and not isinstance(value, FileSlice):
            raise InvariantBroken(f"a message holds {value!r}, which is no array of bytes")
        buffers.append(value)
        return value.size

    return Encoded(msgspec.msgpack.encode(message, enc_hook=set_aside), buffers)


def decode(message_type: type[MessageT], body: bytes, payload: Payload = NO_BYTES) -> MessageT:
    """The message; its arrays are views of the payload. Raises InvalidRequest when the bytes do not fit the type."""
    take = _take_nothing if payload is NO_BYTES else _takes(payload)
    try:
        message = msgspec.msgpack.decode(body, type=message_type, dec_hook=take)
    # Deeply nested arrays are a RecursionError.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"expected a {message_type.__name__}: {error}; are both sides of one version?"
        ) from error
    return message


def in_memory(payload: Payload | None) -> Payload | None:
    """An answer's payload with its slices read, for a lane that cannot send files. Raises StorageError."""
    if not isinstance(payload, list) or not any(isinstance(each, FileSlice) for each in payload):
        return payload
    return _joined([each.read() if isinstance(each, FileSlice) else each for each in payload])


def _joined(arrays: list[Part]) -> Payload:
    if not arrays:
        return NO_BYTES
    if len(arrays) == 1:
        return arrays[0]  # type: ignore[return-value]  # there is no slice among them
    joined_bytes_max = max(JOINED_BYTES_MAX, len(arrays) * SMALL_BYTES)
    is_large = sum(each.size for each in arrays) > joined_bytes_max
    return arrays if is_large else np.concatenate(arrays)  # type: ignore[arg-type]


def payload_bytes(payload: Payload) -> int:
    """How many bytes of records go with a message."""
    return sum(each.size for each in payload) if isinstance(payload, list) else len(payload)


def _takes(payload: Payload) -> Callable[[type, Any], np.ndarray]:
    """What gives the buffers of a payload, one after another. Raises InvalidRequest for what is none."""
    if not _are_bytes(payload):
        raise InvalidRequest(f"payload: expected bytes, or arrays of bytes, found {type(payload).__name__}")
    return _take_whole(payload) if isinstance(payload, list) else _take_parts(payload)


def _take_nothing(_: type, size: Any) -> np.ndarray:
    """Of a message without a payload, as most are."""
    if type(size) is not int or size != 0:
        raise ValueError(f"a buffer of {size!r} bytes in a message without a payload")
    return NO_BYTES


def _are_bytes(payload: Any) -> bool:
    """Whether it is what a lane may carry as payload; a caller may have sent anything."""
    if isinstance(payload, bytes):
        return True
    return all(map(_is_array, payload)) if isinstance(payload, list) else _is_array(payload)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == _BYTE and value.ndim == 1


def _take_parts(payload: np.ndarray | bytes) -> Callable[[type, Any], np.ndarray]:
    """Gives the next bytes of a joined payload, as many as asked for."""
    data = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, dtype=np.uint8)
    position = 0

    def take(_: type, size: Any) -> np.ndarray:
        nonlocal position
        if type(size) is not int or size < 0 or position + size > data.size:
            raise ValueError(f"a buffer of {size!r} bytes at {position} in a payload of {data.size}")
        position += size
        return data[position - size : position]

    return take


def _take_whole(buffers: list[Part]) -> Callable[[type, Any], np.ndarray]:
    """Gives the next of the buffers, which must have the size asked for."""
    left = iter(buffers)

    def take(_: type, size: Any) -> np.ndarray:
        buffer = next(left, NO_BYTES)
        if buffer.size != size:
            raise ValueError(f"a buffer of {size!r} bytes, found one of {buffer.size}")
        return buffer  # type: ignore[return-value]  # no slice arrives

    return take


# Frames: two bodies and the records that belong to them as one `bytes`, for lanes that carry nothing else well.
#
# The records begin at a multiple of 8 bytes, as batches do, so what is read out is a view that every batch
# decodes from.


_SIZES = Struct("<II")  # of the two bodies; the records are the rest
_ALIGNMENT = 8


def frame(first: bytes, second: bytes, records: np.ndarray = NO_BYTES) -> bytes:
    """The parts in one piece."""
    padding = bytes(-(_SIZES.size + len(first) + len(second)) % _ALIGNMENT)
    return b"".join((_SIZES.pack(len(first), len(second)), first, second, padding, records.data))


def unframe(data: object) -> tuple[bytes, bytes, np.ndarray]:
    """The parts of a frame; the records are a view of it. Raises InvalidRequest for what is no frame."""
    if not isinstance(data, bytes) or len(data) < _SIZES.size:
        raise InvalidRequest(f"frame: expected at least {_SIZES.size} bytes, found {type(data).__name__}")
    first_size, second_size = _SIZES.unpack_from(data)
    middle = _SIZES.size + first_size
    end = middle + second_size
    if end > len(data):
        raise InvalidRequest(f"frame: expected {end} bytes, found {len(data)}")
    records = np.frombuffer(data, dtype=np.uint8)[end + -end % _ALIGNMENT :]
    return data[_SIZES.size : middle], data[middle:end], records
