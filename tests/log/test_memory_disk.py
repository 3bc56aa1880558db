"""The faults of the memory disk do what they say, and nothing else is lost."""

import asyncio
from random import Random

import pytest

from rayka.errors import StorageError
from rayka.testing.memory_disk import MemoryDisk


def _disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("/d")
    disk.sync_now([], ["/"])
    return disk


def test_a_process_crash_keeps_every_byte_and_frees_the_locks() -> None:
    disk = _disk()
    disk.append("/d/a", [b"unsynced"])
    disk.lock("/d/.lock")
    disk.process_crash()
    assert (disk.read_at("/d/a", 0, 99), disk.boot_id()) == (b"unsynced", "boot-1")
    disk.lock("/d/.lock")


def test_power_loss_keeps_what_was_synced_and_cuts_the_rest_anywhere() -> None:
    lengths = set()
    for seed in range(60):
        disk = _disk()
        disk.append("/d/a", [b"synced"])
        disk.sync_now(["/d/a"], ["/d"])
        disk.append("/d/a", [b"+rest"])
        disk.power_loss(Random(seed))
        data = disk.read_at("/d/a", 0, 99)
        assert data.rstrip(b"\0") == b"synced+rest"[: len(data.rstrip(b"\0"))]
        assert data.startswith(b"synced")
        lengths.add(len(data))
    assert lengths == set(range(6, 12))


def test_power_loss_takes_names_in_the_order_of_their_making() -> None:
    survivors = set()
    for seed in range(60):
        disk = _disk()
        for name in "abc":
            disk.append(f"/d/{name}", [b"x"])
        disk.power_loss(Random(seed))
        survivors.add("".join(disk.list("/d")))
    assert survivors == {"", "a", "ab", "abc"}


def test_power_loss_does_not_split_a_rename_in_one_directory() -> None:
    for seed in range(30):
        disk = _disk()
        disk.append("/d/a", [b"old"])
        disk.sync_now(["/d/a"], ["/d"])
        disk.append("/d/b", [b"new"])
        disk.sync_now(["/d/b"], ["/d"])
        disk.rename("/d/b", "/d/a")
        disk.power_loss(Random(seed))
        assert (disk.list("/d"), disk.read_at("/d/a", 0, 9)) in ((["a"], b"new"), (["a", "b"], b"old"))


def test_a_directory_whose_name_was_not_synced_is_lost_with_all_in_it() -> None:
    disk = MemoryDisk()
    disk.make_directory("/d/e")
    disk.append("/d/e/a", [b"x"])
    disk.sync_now(["/d/e/a"], ["/d/e"])
    for seed in range(20):
        if not disk.exists("/d"):
            break
        disk.power_loss(Random(seed))
    disk.sync_now([], ["/"])
    assert disk.boot_id() != "boot-1"


def test_what_is_appended_during_a_sync_is_not_covered_by_it() -> None:
    disk = _disk()
    disk.append("/d/a", [b"before"])

    async def append_during_sync() -> None:
        syncing = asyncio.ensure_future(disk.sync(["/d/a"], ["/d"]))
        await asyncio.sleep(0)
        disk.append("/d/a", [b"during"])
        await syncing

    asyncio.run(append_during_sync())
    assert len(disk.durable_file("/d/a").data) - disk.durable_file("/d/a").synced_bytes == 6


@pytest.mark.parametrize("operation", ["write", "read", "sync"])
def test_an_injected_failure_strikes_once_and_only_where_it_was_meant(operation: str) -> None:
    disk = _disk()
    disk.append("/d/a", [b"x"])
    calls = {
        "write": lambda path: disk.append(path, [b"y"]),
        "read": lambda path: disk.read_at(path, 0, 1),
        "sync": lambda path: disk.sync_now([path], []),
    }
    disk.append("/d/b", [b"x"])
    disk.fail(operation, "/d/a")  # type: ignore[arg-type]
    calls[operation]("/d/b")
    with pytest.raises(StorageError, match="/d/a: Input/output error"):
        calls[operation]("/d/a")
    calls[operation]("/d/a")


def test_a_torn_append_leaves_the_bytes_that_it_was_told_to() -> None:
    disk = _disk()
    disk.tear_next_append("/d/a", 4)
    with pytest.raises(StorageError, match="Input/output error"):
        disk.append("/d/a", [b"abc", b"def"])
    assert disk.read_at("/d/a", 0, 99) == b"abcd"


def test_a_full_disk_tears_the_write_that_meets_its_end() -> None:
    disk = _disk()
    disk.fill_up(after_bytes=3)
    with pytest.raises(StorageError, match="disk full"):
        disk.append("/d/a", [b"abcdef"])
    assert (disk.read_at("/d/a", 0, 99), disk.free_bytes("/d")) == (b"abc", 0)


def test_a_flipped_bit_shows_in_new_maps_and_not_in_old_ones() -> None:
    disk = _disk()
    disk.append("/d/a", [b"abc"])
    old = disk.map("/d/a")
    disk.flip_bit("/d/a", 1, bit=0)
    assert (bytes(old), bytes(disk.map("/d/a"))) == (b"abc", b"acc")
