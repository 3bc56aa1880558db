"""A toy state machine on any replicated log: registers, each with a value and a version that counts its changes.

It has what the real ones have: records with keys and records that delete one, responses without records, refusals,
timers that write (a value may have a lease), soft state that begins when it becomes active, and a snapshot.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from rayka.errors import ApiError, BrokerNotAvailable, CorruptRecord, InvalidRequest, NotLeaderOrFollower
from rayka.protocol.topics import NewTopic
from rayka.shard.shard import NotHere, Result, Timer
from rayka.shard.shard_records import KeyValue, RecordCodec, ShardType

REGISTERS_TOPIC = "__registers"


class Register(msgspec.Struct, frozen=True, array_like=True):
    """The state of a key. A value with a lease is removed when the lease ends; 0: no lease."""

    value: str
    version: int
    lease_ms: int = 0


class RegisterChange(NamedTuple):
    """The record: a key's new state, None when it is gone."""

    key: str
    register: Register | None


class Put(NamedTuple):
    """Gives the key a value; the response is its version."""

    key: str
    value: str
    lease_ms: int = 0


class Get(NamedTuple):
    """The response is the register, None when there is none."""

    key: str


class Expire(NamedTuple):
    """A timer's request: the lease of this version is over."""

    key: str
    version: int


class Registers:
    """The state machine."""

    def __init__(self) -> None:
        self.registers: dict[str, Register] = {}

    def __repr__(self) -> str:
        return f"<Registers {len(self.registers)}>"

    def handle(
        self, request: Put | Get | Expire, *, now_ms: int, next_offset: int
    ) -> Result[RegisterChange, Register | int | None]:
        known = self.registers.get(request.key)
        if isinstance(request, Get):
            return Result((), known)
        if isinstance(request, Expire):
            is_over = known is not None and known.version == request.version
            return Result([RegisterChange(request.key, None)] if is_over else [], None)
        if not request.value:
            raise InvalidRequest(f"{request.key!r}: expected a value, found none")
        register = Register(request.value, known.version + 1 if known else 1, request.lease_ms)
        return Result(
            [RegisterChange(request.key, register)], register.version, [_lease(request.key, register, now_ms)]
        )

    def replay(self, record: RegisterChange, offset: int) -> None:
        if record.register is None:
            self.registers.pop(record.key, None)
        else:
            self.registers[record.key] = record.register

    def on_active(self, *, now_ms: int, next_offset: int) -> Iterator[Timer]:
        return (
            _lease(key, register, now_ms) for key, register in self.registers.items() if register.lease_ms
        )

    def not_here(self, why: NotHere) -> ApiError:
        return (BrokerNotAvailable if why.is_loading else NotLeaderOrFollower)(why.reason)

    def snapshot(self, next_offset: int) -> Iterable[RegisterChange]:
        return [RegisterChange(key, register) for key, register in self.registers.items()]


def _lease(key: str, register: Register, now_ms: int) -> Timer:
    """A value without a lease ends that of the value before it."""
    request = Expire(key, register.version) if register.lease_ms else None
    return Timer(key, now_ms + register.lease_ms, request)


def _encode(change: RegisterChange) -> KeyValue:
    register = change.register
    return KeyValue(change.key.encode(), None if register is None else msgspec.msgpack.encode(register))


def _decode(pair: KeyValue) -> RegisterChange:
    if pair.key is None:
        raise CorruptRecord("expected a key, found none")
    key, value = pair.key.decode(), pair.value
    try:
        return RegisterChange(key, None if value is None else msgspec.msgpack.decode(value, type=Register))
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"expected a register: {error}") from error


CHANGES: RecordCodec[RegisterChange] = RecordCodec(_encode, _decode)


def registers_type(partition_count: int = 1, replication_factor: int = 3) -> ShardType:
    """Registers on the partitions of an internal topic."""
    configs = {"min.insync.replicas": str(min(2, replication_factor))}
    topic = NewTopic(REGISTERS_TOPIC, partition_count, replication_factor, configs)
    return ShardType(topic, CHANGES, lambda number: Registers())
