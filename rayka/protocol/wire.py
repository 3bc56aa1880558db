"""Messages as bytes: MessagePack for the structure, and beside it a payload for the records.

Fields of type `numpy.ndarray` (uint8) do not go through MessagePack: the structure holds their lengths, and their bytes
follow each other in the payload, in order: joined while they or their sum are small, as they are beyond. So a response
of megabytes crosses Ray as one object that arrives without a copy, and every batch in it stays a view. Batches are
multiples of 8 bytes long, so views stay aligned. In place of an array a sender may give a slice of a file: a lane that
can sends it from there, any other reads it at the last moment; it arrives as an array either way.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from rayka.errors import ApiError, ErrorCode, InvalidRequest, InvariantBroken, NotController, error_for
from rayka.ids import NO_EPOCH, NO_NODE, ZERO_ID
from rayka.ports import FileSlice, Message
from rayka.protocol.connection import CallNumber

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
