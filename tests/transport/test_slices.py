"""Slices of files in answers: sent from the file, whatever becomes of it meanwhile, and let go of with the lane."""

import asyncio
import errno
import gc
import os
import socket
import weakref
from pathlib import Path
from random import Random

import numpy as np
import pytest

from rayka.actors.ray_network import pack_answer, unpack_answer
from rayka.errors import ErrorCode, NetworkException
from rayka.log.disk_threads import DiskThread
from rayka.log.local_disk import LocalDisk, LocalSlice, OpenFile
from rayka.protocol.caller import Answer
from rayka.protocol.wire import Failure, Payload, decode
from rayka.transport.stream import End
from tests.transport.lane_support import call, connected, run, until

DATA = Random(1).randbytes(6 << 20)


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "segment"
    path.write_bytes(DATA)
    return str(path)


class Unread(LocalSlice):
    """A slice that no copy may be made of."""

    def read(self) -> np.ndarray:
        raise AssertionError("the bytes were read")


def _slice(path: str, position: int, size: int) -> LocalSlice:
    file = OpenFile(path, os.O_RDONLY, DiskThread("rayka-test", 60))
    return Unread(file, path, position, size)


@pytest.mark.parametrize("over_tcp", [False, True])
def test_slices_and_arrays_arrive_in_order_and_no_slice_is_copied(path: str, over_tcp: bool) -> None:
    parts = [
        _slice(path, 8, 3 << 20),
        np.frombuffer(b"between", dtype=np.uint8),
        _slice(path, 5 << 20, 1 << 20),
        _slice(path, 0, 16),
    ]
    expected = DATA[8 : 8 + (3 << 20)] + b"between" + DATA[5 << 20 :] + DATA[:16]

    async def handle(api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        return body, parts

    async def test() -> None:
        async with connected(handle, over_tcp=over_tcp) as (_, lane):
            answers = await asyncio.gather(*(lane.send(call(b"%d" % each)) for each in range(5)))
            for number, (body, payload) in enumerate(answers):
                assert (body, bytes(payload)) == (b"%d" % number, expected)  # type: ignore[arg-type]

    run(test())


@pytest.mark.parametrize("over_tcp", [False, True])
def test_all_bytes_of_slices_leave_by_sendfile(
    path: str, over_tcp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk()
    places = ((8, 3 << 20), (5 << 20, 1 << 20), (0, 16))
    pieces = [disk.slice(path, position, size) for position, size in places]
    has_sendfile = _has_sendfile(path)
    sendfile, sent = os.sendfile, 0

    def counted(*arguments: int) -> int:
        nonlocal sent
        count = sendfile(*arguments)
        sent += count
        return count

    monkeypatch.setattr(os, "sendfile", counted)

    async def handle(api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        return b"", [*pieces, np.frombuffer(b"not of a file", dtype=np.uint8)]

    async def test() -> None:
        async with connected(handle, over_tcp=over_tcp) as (_, lane):
            await lane.send(call())

    run(test())
    assert sent == (sum(each.size for each in pieces) if has_sendfile else 0)
    disk.close()


def test_a_slice_that_waits_is_sent_although_its_file_was_replaced_and_removed(path: str) -> None:
    piece = _slice(path, 0, len(DATA))

    async def handle(api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        return b"", [piece]

    async def test() -> None:
        async with connected(handle) as (server, lane):
            lane._stream.set_paused(True)
            answer = asyncio.ensure_future(lane.send(call()))
            await until(lambda: _queued_bytes(server) > 0)
            _replace_and_remove(path)
            lane._stream.set_paused(False)
            _, payload = await answer
            assert bytes(payload) == DATA  # type: ignore[arg-type]

    run(test())


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_slice_on_a_file_system_without_sendfile_is_read_and_sent(
    path: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", unsupported)
    disk = LocalDisk()
    piece = disk.slice(path, 8, len(DATA) - 8)

    async def handle(api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        return b"", [piece]

    async def test() -> None:
        async with connected(handle) as (server, lane):
            _, payload = await lane.send(call())
            assert bytes(payload) == DATA[8:]  # type: ignore[arg-type]
            assert not server.cut_off

    run(test())
    disk.close()


def test_a_file_that_ends_too_early_ends_the_lane_and_is_counted(path: str) -> None:
    piece = _slice(path, 0, len(DATA))

    async def handle(api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        os.truncate(path, 1 << 20)
        return b"", [piece]

    async def test() -> None:
        async with connected(handle) as (server, lane):
            with pytest.raises(NetworkException):
                await lane.send(call())
            assert server.cut_off == {End.UNREADABLE: 1}

    run(test())


def test_a_slice_is_let_go_of_when_its_reader_has_vanished(path: str) -> None:
    kept: list[weakref.ref[OpenFile]] = []
    thread = DiskThread("rayka-test", 60)

    class Watched(OpenFile):
        __slots__ = ("__weakref__",)

    async def handle(api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        file = Watched(path, os.O_RDONLY, thread)
        kept.append(weakref.ref(file))
        return b"", [LocalSlice(file, path, 0, len(DATA))]

    async def test() -> None:
        async with connected(handle) as (server, lane):
            lane._stream.set_paused(True)
            answer = asyncio.ensure_future(lane.send(call()))
            await until(lambda: _queued_bytes(server) > 0)
            assert kept[0]() is not None
            lane.close()
            with pytest.raises(NetworkException):
                await answer
            await until(lambda: not server._connections)
            await until(lambda: gc.collect() >= 0 and kept[0]() is None)

    run(test())
    thread.close()


def test_for_ray_slices_are_read_when_the_answer_is_packed(path: str) -> None:
    disk = LocalDisk()
    small, large = disk.slice(path, 0, 1000), disk.slice(path, 0, 1 << 20)
    for parts in ([small], [large], [small, large]):
        body, payload = unpack_answer(pack_answer((b"body", list(parts))))
        pieces = payload if isinstance(payload, list) else [payload]
        expected = b"".join(DATA[: each.size] for each in parts)
        assert (body, b"".join(map(bytes, pieces))) == (b"body", expected)  # type: ignore[arg-type]
    disk.close()


def test_for_ray_a_slice_that_cannot_be_read_is_a_failure(path: str) -> None:
    disk = LocalDisk()
    piece = disk.slice(path, 0, 1000)
    os.truncate(path, 10)
    body, payload = unpack_answer(pack_answer((b"body", [piece])))
    assert (payload, decode(Failure, body).error_code) == (None, ErrorCode.KAFKA_STORAGE_ERROR)
    disk.close()


def _replace_and_remove(path: str) -> None:
    Path(path + ".tmp").write_bytes(b"other")
    os.rename(path + ".tmp", path)
    os.unlink(path)


def _queued_bytes(server: object) -> int:
    return sum(each._stream.queued_bytes for each in server._connections)  # type: ignore[attr-defined]


def _has_sendfile(path: str) -> bool:
    """Whether the file system of the tests has it."""
    near, far = socket.socketpair()
    with near, far, open(path, "rb") as file:
        try:
            return os.sendfile(near.fileno(), file.fileno(), 0, 1) == 1
        except OSError:
            return False
