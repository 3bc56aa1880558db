"""The contract of every `Disk`, proven on the real one and on the one in memory."""

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayka.errors import (
    DiskFull,
    DiskNotResponding,
    DiskReadOnly,
    PassingStorageError,
    StorageError,
    TooManyOpenFiles,
)
from rayka.log.local_disk import LocalDisk, storage_error
from rayka.ports import Disk
from rayka.testing.memory_disk import MemoryDisk
from tests.descriptors import none_free


def copy_prefix(disk: Disk, source: str, target: str, size_bytes: int) -> None:
    asyncio.run(disk.copy_prefix(source, target, size_bytes))


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Disk, str]]:
    """A disk, and an empty directory on it."""
    if request.param == "memory":
        disk = MemoryDisk()
        disk.make_directory("/data")
        yield disk, "/data"
        return
    local, directory = LocalDisk(max_open_files=3), tempfile.mkdtemp()
    yield local, directory
    local.close()
    shutil.rmtree(directory)


def test_append_makes_the_file_and_returns_where_each_write_begins(place: tuple[Disk, str]) -> None:
    disk, directory = place
    path = f"{directory}/a"
    assert disk.append(path, [b"one", memoryview(b"two"), np.frombuffer(b"three", np.uint8)]) == 0
    assert disk.append(path, [bytearray(b"four")]) == 11
    assert disk.read_at(path, 0, 100) == b"onetwothreefour"


def test_an_append_of_nothing_makes_an_empty_file(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [])
    disk.append(f"{directory}/a", [b"", np.empty(0, np.uint8)])
    assert (disk.size(f"{directory}/a"), bytes(disk.map(f"{directory}/a"))) == (0, b"")


def test_one_append_takes_thousands_of_buffers(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [bytes([number % 251]) * 3 for number in range(5000)])
    assert disk.read_at(f"{directory}/a", 0, 20_000) == b"".join(bytes([n % 251]) * 3 for n in range(5000))


def test_a_read_is_short_only_at_the_end(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [b"0123456789"])
    assert [disk.read_at(f"{directory}/a", at, 4) for at in (0, 3, 8, 10, 20)] == [
        b"0123",
        b"3456",
        b"89",
        b"",
        b"",
    ]


def test_a_map_keeps_its_bytes_after_append_rename_and_unlink(place: tuple[Disk, str]) -> None:
    disk, directory = place
    first, second = f"{directory}/a", f"{directory}/b"
    disk.append(first, [b"before"])
    view = disk.map(first)
    disk.append(first, [b"after"])
    disk.write(second, b"other")
    disk.rename(second, first)
    assert (bytes(view), bytes(disk.map(first))) == (b"before", b"other")
    disk.unlink(first)
    assert bytes(view) == b"before"


def test_a_map_is_read_only(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [b"abc"])
    assert disk.map(f"{directory}/a").readonly


def test_write_replaces_the_inode(place: tuple[Disk, str]) -> None:
    disk, directory = place
    path = f"{directory}/a"
    disk.append(path, [b"a longer old content"])
    old = disk.identity(path)
    disk.write(path, b"new")
    assert disk.identity(path).inode != old.inode
    assert (disk.read_at(path, 0, 100), disk.identity(path).size_bytes) == (b"new", 3)
    assert disk.list(directory) == ["a"]


def test_appends_after_a_rename_go_to_the_name_and_not_to_the_old_inode(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [b"old"])
    copy_prefix(disk, f"{directory}/a", f"{directory}/b", 2)
    disk.rename(f"{directory}/b", f"{directory}/a")
    assert disk.append(f"{directory}/a", [b"new"]) == 2
    assert disk.read_at(f"{directory}/a", 0, 10) == b"olnew"


def test_copy_prefix_replaces_what_an_earlier_attempt_left(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [b"0123456789"])
    disk.append(f"{directory}/b", [b"left over from before"])
    copy_prefix(disk, f"{directory}/a", f"{directory}/b", 4)
    assert disk.read_at(f"{directory}/b", 0, 100) == b"0123"


def test_copy_prefix_of_more_than_there_is_fails(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [b"0123"])
    with pytest.raises(StorageError, match="cannot copy"):
        copy_prefix(disk, f"{directory}/a", f"{directory}/b", 5)
    assert disk.list(directory) == ["a"]


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 10_000, 100_001])
def test_copy_prefix_copies_whole_blocks_and_the_rest(place: tuple[Disk, str], size_bytes: int) -> None:
    disk, directory = place
    content = bytes(number % 251 for number in range(100_001))
    disk.append(f"{directory}/a", [content])
    copy_prefix(disk, f"{directory}/a", f"{directory}/b", size_bytes)
    assert disk.read_at(f"{directory}/b", 0, 200_000) == content[:size_bytes]


def test_a_cut_file_keeps_its_inode_and_goes_on_where_it_was_cut(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [b"0123456789"])
    before = disk.identity(f"{directory}/a")
    disk.cut(f"{directory}/a", 4)
    assert disk.append(f"{directory}/a", [b"abc"]) == 4
    assert disk.read_at(f"{directory}/a", 0, 100) == b"0123abc"
    assert disk.identity(f"{directory}/a").inode == before.inode


def test_a_large_file_that_is_removed_or_replaced_is_gone_at_once(place: tuple[Disk, str]) -> None:
    disk, directory = place
    for name in ("a", "b"):
        disk.append(f"{directory}/{name}", [bytes(5 << 20)])
    disk.append(f"{directory}/c", [b"c"])
    disk.unlink(f"{directory}/a")
    disk.rename(f"{directory}/c", f"{directory}/b")
    assert (disk.list(directory), disk.size(f"{directory}/b")) == (["b"], 1)


def test_more_files_than_may_be_open_are_used_in_turn(place: tuple[Disk, str]) -> None:
    disk, directory = place
    for turn in (b"x", b"y"):
        for number in range(10):
            disk.append(f"{directory}/{number}", [turn])
    assert [disk.read_at(f"{directory}/{number}", 0, 9) for number in range(10)] == [b"xy"] * 10


def test_directories_are_made_with_parents_listed_sorted_moved_and_removed(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.make_directory(f"{directory}/x/y")
    disk.make_directory(f"{directory}/x/y")
    disk.append(f"{directory}/x/y/b", [b"1"])
    disk.append(f"{directory}/x/y/a", [b"2"])
    assert disk.list(f"{directory}/x/y") == ["a", "b"]
    disk.rename(f"{directory}/x", f"{directory}/z")
    assert disk.append(f"{directory}/z/y/a", [b"3"]) == 1
    assert not disk.exists(f"{directory}/x/y/a")
    asyncio.run(disk.discard(f"{directory}/z"))
    assert disk.list(directory) == []


def test_a_discarded_directory_is_gone_with_all_in_it_and_one_that_is_gone_is_passed_over(
    place: tuple[Disk, str],
) -> None:
    disk, directory = place
    disk.make_directory(f"{directory}/x/y")
    for path in (f"{directory}/x/a", f"{directory}/x/y/b"):
        disk.append(path, [b"1"])
    view = disk.map(f"{directory}/x/a")
    for _ in range(2):
        asyncio.run(disk.discard(f"{directory}/x"))
        assert disk.list(directory) == []
    assert bytes(view) == b"1"


@pytest.mark.parametrize(
    "call",
    [
        lambda disk, path: disk.size(path),
        lambda disk, path: disk.identity(path),
        lambda disk, path: disk.list(path),
        lambda disk, path: disk.read_at(path, 0, 1),
        lambda disk, path: disk.map(path),
        lambda disk, path: disk.rename(path, path + "2"),
        lambda disk, path: disk.unlink(path),
        lambda disk, path: disk.cut(path, 1),
        lambda disk, path: copy_prefix(disk, path, path + "2", 1),
        lambda disk, path: disk.append(path + "/in/it", [b"x"]),
        lambda disk, path: disk.write(path + "/in/it", b"x"),
        lambda disk, path: disk.free_bytes(path),
        lambda disk, path: disk.lock(path + "/in/it"),
    ],
)
def test_a_missing_path_is_a_storage_error_that_names_path_and_cause(
    place: tuple[Disk, str], call: Callable[[Disk, str], object]
) -> None:
    disk, directory = place
    with pytest.raises(StorageError, match=r"cannot .* .*/gone.*: No such file or directory"):
        call(disk, f"{directory}/gone")


def test_a_lock_is_held_once_until_released(place: tuple[Disk, str]) -> None:
    disk, directory = place
    lock = disk.lock(f"{directory}/.lock")
    with pytest.raises(StorageError, match=r"\.lock is locked by \w+"):
        disk.lock(f"{directory}/.lock")
    lock.release()
    disk.lock(f"{directory}/.lock").release()


def test_sync_takes_files_and_directories_and_passes_over_missing_ones(place: tuple[Disk, str]) -> None:
    disk, directory = place
    disk.append(f"{directory}/a", [b"x"])
    paths = [f"{directory}/a", f"{directory}/gone"]
    asyncio.run(disk.sync(paths, [directory, f"{directory}/gone too"]))
    assert disk.read_at(f"{directory}/a", 0, 1) == b"x"


def test_the_disk_says_how_much_is_free_and_which_boot_it_is(place: tuple[Disk, str]) -> None:
    disk, directory = place
    assert disk.free_bytes(directory) > 0
    assert disk.boot_id() == disk.boot_id() != ""


def threads_of(monkeypatch: pytest.MonkeyPatch, name: str) -> set[int]:
    """In which threads this call of the system is made from now on."""
    threads, call = set[int](), getattr(os, name)

    def recorded(*arguments: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        return call(*arguments, **options)

    monkeypatch.setattr(os, name, recorded)
    return threads


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("fsync", lambda disk, path: disk.sync([f"{path}/a"], [path])),
        ("copy_file_range", lambda disk, path: disk.copy_prefix(f"{path}/a", f"{path}/b", 3)),
        ("fdatasync", lambda disk, path: disk.copy_prefix(f"{path}/a", f"{path}/b", 3)),
        ("unlink", lambda disk, path: disk.discard(path)),
    ],
    ids=["sync", "copy", "sync of a copy", "discard"],
)
def test_the_real_disk_waits_on_threads_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, act: Callable[[Disk, str], Awaitable[None]]
) -> None:
    async def run() -> None:
        await act(disk, str(tmp_path))

    disk = LocalDisk()
    disk.append(f"{tmp_path}/a", [b"0123"])
    threads = threads_of(monkeypatch, name)
    asyncio.run(run())
    disk.close()
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "act",
    [lambda disk, path: disk.unlink(path), lambda disk, path: disk.rename(f"{path}.small", path)],
    ids=["unlink", "rename"],
)
def test_the_real_disk_ends_a_large_file_on_a_thread_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, act: Callable[[Disk, str], None]
) -> None:
    disk, path = LocalDisk(), tmp_path / "a"
    path.write_bytes(bytes(5 << 20))
    path.with_suffix(".small").touch()
    threads = threads_of(monkeypatch, "close")
    act(disk, str(path))
    disk.close()
    assert threads
    assert threading.get_ident() not in threads


def test_the_real_disk_keeps_no_more_files_open_than_it_may(tmp_path: Path) -> None:
    disk = LocalDisk(max_open_files=2)
    for number in range(5):
        disk.append(str(tmp_path / str(number)), [b"x"])
    assert repr(disk) == "<LocalDisk open=2/2>"
    disk.close()
    assert repr(disk) == "<LocalDisk open=0/2>"


def test_the_real_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    disk = LocalDisk()
    lock = disk.lock(str(tmp_path / ".lock"))
    with pytest.raises(StorageError, match=r"locked by process \d+"):
        LocalDisk().lock(str(tmp_path / ".lock"))
    lock.release()


# ---- Without descriptors, and read-only ----


SYNCHRONOUS_CALLS: list[Callable[[Disk, str], object]] = [
    lambda disk, path: disk.list(path),
    lambda disk, path: disk.read_at(f"{path}/old", 0, 1),
    lambda disk, path: disk.slice(f"{path}/old", 0, 1),
    lambda disk, path: disk.map(f"{path}/old"),
    lambda disk, path: disk.append(f"{path}/new", [b"x"]),
    lambda disk, path: disk.write(f"{path}/new", b"x"),
    lambda disk, path: disk.cut(f"{path}/old", 0),
    lambda disk, path: disk.lock(f"{path}/.lock"),
    lambda disk, path: disk.boot_id(),
]


@pytest.mark.parametrize("call", SYNCHRONOUS_CALLS)
def test_a_call_that_finds_no_descriptor_says_so_and_is_made_once_there_is_one(
    tmp_path: Path, call: Callable[[Disk, str], object]
) -> None:
    disk = LocalDisk()
    (tmp_path / "old").write_bytes(b"old")
    with (
        none_free(),
        pytest.raises(TooManyOpenFiles, match=r"cannot .*: Too many open files; raise the limit"),
    ):
        call(disk, str(tmp_path))
    call(disk, str(tmp_path))


@pytest.mark.parametrize("call", SYNCHRONOUS_CALLS)
def test_files_that_are_kept_open_give_their_descriptors_to_others(
    tmp_path: Path, call: Callable[[Disk, str], object]
) -> None:
    disk = LocalDisk()
    (tmp_path / "old").write_bytes(b"old")
    for number in range(3):
        disk.append(f"{tmp_path}/{number}", [b"x"])
    with none_free():
        call(disk, str(tmp_path))


@pytest.mark.parametrize(
    "act",
    [
        lambda disk, path: disk.sync([f"{path}/a"], [path]),
        lambda disk, path: disk.copy_prefix(f"{path}/a", f"{path}/b", 3),
        lambda disk, path: disk.discard(f"{path}/c"),
    ],
    ids=["sync", "copy", "discard"],
)
def test_what_is_awaited_waits_for_a_descriptor(
    tmp_path: Path, act: Callable[[Disk, str], Awaitable[None]]
) -> None:
    """A sync that was not begun has neither failed nor happened."""
    disk, said = LocalDisk(), Said()
    logging.getLogger("rayka.log.local_disk").addHandler(said)
    (tmp_path / "a").write_bytes(b"0123")
    (tmp_path / "c").mkdir()

    async def run() -> None:
        call = asyncio.ensure_future(act(disk, str(tmp_path)))
        with none_free():
            await said.waits.wait()
            assert not call.done()
        await call

    asyncio.run(run())
    logging.getLogger("rayka.log.local_disk").removeHandler(said)
    disk.close()


class Said(logging.Handler):
    """Whether the disk has said that it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "it is tried until a descriptor is free" in record.getMessage():
            self.waits.set()


@pytest.mark.parametrize(
    "act",
    [
        lambda disk: disk.sync(["/data/a"], ["/data"]),
        lambda disk: disk.copy_prefix("/data/a", "/data/b", 3),
        lambda disk: disk.discard("/data/a"),
    ],
    ids=["sync", "copy", "discard"],
)
def test_the_disk_in_memory_waits_for_a_descriptor_too(act: Callable[[Disk], Awaitable[None]]) -> None:
    async def run() -> None:
        disk = MemoryDisk()
        disk.make_directory("/data")
        disk.append("/data/a", [b"0123"])
        for operation in ("write", "sync"):
            disk.fail(operation, times=-1, number=errno.EMFILE)
        with pytest.raises(TooManyOpenFiles):
            disk.append("/data/a", [b"x"])
        call = asyncio.ensure_future(act(disk))
        await asyncio.sleep(0.01)
        assert not call.done()
        disk.mend()
        await call

    asyncio.run(run())


def test_a_file_that_may_not_be_written_is_read_and_an_append_to_it_says_why(tmp_path: Path) -> None:
    """Like a file on a disk that is mounted read-only."""
    disk, path = LocalDisk(), tmp_path / "a"
    path.write_bytes(b"0123")
    flags = set[int]()
    disk.read_at(str(path), 0, 4)
    flags |= _access_modes(path)
    assert bytes(disk.map(str(path))) == disk.slice(str(path), 0, 4).read().tobytes() == b"0123"
    flags |= _access_modes(path)
    assert flags == {os.O_RDONLY}
    assert disk.append(str(path), [b"4"]) == 4
    assert (disk.read_at(str(path), 0, 9), _access_modes(path)) == (b"01234", {os.O_RDWR})


def _access_modes(path: Path) -> set[int]:
    """How this process has the file open now."""
    modes = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
                modes.add(fcntl.fcntl(int(descriptor), fcntl.F_GETFL) & os.O_ACCMODE)
    return modes


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EMFILE, TooManyOpenFiles), (errno.ENFILE, TooManyOpenFiles), (errno.EROFS, DiskReadOnly),
        (errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StorageError), (None, StorageError),
    ],
)  # fmt: skip
def test_the_errno_says_whether_an_error_passes(number: int | None, expected: type[StorageError]) -> None:
    error = storage_error("append to", "/data/a", number)
    assert type(error) is expected
    assert isinstance(error, PassingStorageError) is (expected is not StorageError)


# ---- Disks that hang ----


@pytest.fixture(params=["local", "memory"])
def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Disk, str]]:
    """A disk with locked directories `a` and `b`, where awaited calls on the file `a/hangs` do not return; and the path
    to both.
    """
    if request.param == "memory":
        memory = MemoryDisk(hang_timeout_s=0.2)
        for each in "ab":
            memory.make_directory(f"/data/{each}")
            memory.append(f"/data/{each}/file", [b"0123"])
        memory.append("/data/a/hangs", [b"0123"])
        memory.hang("/data/a")
        yield memory, "/data"
        return
    local = LocalDisk(hang_timeout_s=2)  # a sync takes less on a busy machine, too
    for each in "ab":
        (tmp_path / each).mkdir()
        local.lock(f"{tmp_path}/{each}/.lock")
        local.append(f"{tmp_path}/{each}/file", [b"0123"])
    fifo = tmp_path / "a/hangs"
    os.mkfifo(fifo)  # to open it waits for a writer
    yield local, str(tmp_path)
    writer = os.open(fifo, os.O_RDWR)
    local.close()
    os.close(writer)


OF_A_DISK: list[Callable[[Disk, str], Awaitable[None]]] = [
    lambda disk, path: disk.sync([f"{path}/file"], [path]),
    lambda disk, path: disk.sync([f"{path}/file"], [path], in_background=True),
    lambda disk, path: disk.copy_prefix(f"{path}/file", f"{path}/copy", 4),
    lambda disk, path: disk.discard(f"{path}/file"),
]


@pytest.mark.parametrize("call", OF_A_DISK, ids=["sync", "background", "copy", "discard"])
def test_a_directory_that_hangs_holds_up_no_other_one(
    hanging: tuple[Disk, str], call: Callable[[Disk, str], Awaitable[None]]
) -> None:
    disk, path = hanging

    async def run() -> None:
        hung = asyncio.ensure_future(disk.sync([f"{path}/a/hangs"], []))
        also = asyncio.ensure_future(disk.copy_prefix(f"{path}/a/hangs", f"{path}/a/copy", 1))
        await asyncio.sleep(0)
        await call(disk, f"{path}/b")
        for each in (hung, also):
            with pytest.raises(DiskNotResponding):
                await each

    asyncio.run(run())


def test_a_call_that_hangs_fails_after_the_bound_and_says_what_to_do(
    hanging: tuple[Disk, str],
) -> None:
    disk, path = hanging

    async def run() -> None:
        with pytest.raises(
            DiskNotResponding,
            match=r"cannot sync .*/a/hangs: the disk has not answered for (0\.)?2 s; look at",
        ):
            await disk.sync([f"{path}/a/hangs"], [])

    asyncio.run(run())


def test_a_call_that_was_slow_has_not_failed() -> None:
    async def run() -> None:
        disk = MemoryDisk()
        disk.make_directory("/data")
        disk.append("/data/a", [b"0123"])
        disk.hang("/data")
        slow = asyncio.ensure_future(disk.sync(["/data/a"], []))
        await asyncio.sleep(0.01)
        assert not slow.done()
        disk.mend()
        await slow

    asyncio.run(run())
