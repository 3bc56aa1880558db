"""The snapshots of a directory: whole ones or none, whatever happens on the way."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from rayka.errors import CorruptRecord, DiskFull, StorageError
from rayka.ids import OffsetAndEpoch
from rayka.log.local_disk import LocalDisk
from rayka.raft.snapshot import BOOTSTRAP_SNAPSHOT_ID, SnapshotStore, encode_snapshot, snapshot_name
from rayka.testing.memory_disk import MemoryDisk
from tests.raft.test_snapshot import ID, VOTERS, content

DIRECTORY = "/data/__cluster_metadata-0"
LATER = OffsetAndEpoch(300, 5)
CONTENT = content(VOTERS, [b"a", b"b"], [b"c" * 1000])


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    disk.sync_now([], ["/", "/data", DIRECTORY])
    return disk


def _written(disk: MemoryDisk, *ids: OffsetAndEpoch) -> SnapshotStore:
    store = SnapshotStore(disk, DIRECTORY)
    for each in ids:
        asyncio.run(store.write(each, [CONTENT]))
    return store


def test_a_directory_that_is_not_there_holds_none() -> None:
    store = SnapshotStore(MemoryDisk(), DIRECTORY)
    assert (store.ids, store.earliest, store.latest, store.bootstrap_voters()) == ((), None, None, None)


def test_ids_rise_whatever_the_order_of_writing(disk: MemoryDisk) -> None:
    epoch_later = OffsetAndEpoch(120, 6)
    store = _written(disk, LATER, ID, epoch_later)
    for each in (store, SnapshotStore(disk, DIRECTORY)):
        assert each.ids == (ID, epoch_later, LATER)
        assert (each.earliest, each.latest) == (ID, LATER)


def test_what_is_written_is_read_in_parts_that_need_no_boundaries(disk: MemoryDisk) -> None:  # A49
    store = _written(disk, ID)
    assert store.size(ID) == len(CONTENT)
    parts = [store.read(ID, position, 100) for position in range(0, len(CONTENT) + 100, 100)]
    assert b"".join(parts) == bytes(store.content(ID)) == CONTENT
    assert list(store.load(ID).values()) == [b"a", b"b", b"c" * 1000]


def test_no_more_is_read_than_there_is_whatever_is_asked_for(tmp_path: Path) -> None:  # A49
    local = LocalDisk()
    store = SnapshotStore(local, str(tmp_path))
    asyncio.run(store.write(ID, [CONTENT]))
    assert store.read(ID, 100, 2**63) == CONTENT[100:]
    local.close()


def test_one_that_is_there_already_is_not_written_again(disk: MemoryDisk) -> None:  # A46
    store = _written(disk, ID)
    asyncio.run(store.write(ID, [b"other"]))
    assert (store.ids, bytes(store.content(ID))) == ((ID,), CONTENT)


def test_the_voters_of_the_directory(disk: MemoryDisk) -> None:  # A48
    store = SnapshotStore(disk, DIRECTORY)
    parts = encode_snapshot(BOOTSTRAP_SNAPSHOT_ID, VOTERS, (), timestamp_ms=1)
    asyncio.run(store.write(BOOTSTRAP_SNAPSHOT_ID, parts))
    for each in (store, SnapshotStore(disk, DIRECTORY)):
        assert (each.ids, each.bootstrap_voters()) == ((), VOTERS)


@pytest.mark.parametrize("damaged", [CONTENT[:-1], b"", content(None, [b"a"])])
def test_a_damaged_file_of_the_first_voters_is_named(disk: MemoryDisk, damaged: bytes) -> None:  # A48
    disk.write(f"{DIRECTORY}/{snapshot_name(BOOTSTRAP_SNAPSHOT_ID)}", damaged)
    with pytest.raises(StorageError, match=r"/data/__cluster_metadata-0/0{20}-0{10}\.checkpoint"):
        SnapshotStore(disk, DIRECTORY).bootstrap_voters()


def test_a_damaged_snapshot_is_named(disk: MemoryDisk) -> None:
    store = _written(disk, ID)
    disk.flip_bit(store.path(ID), len(CONTENT) // 2)
    with pytest.raises(StorageError, match=snapshot_name(ID)):
        store.load(ID)


def test_a_reader_that_has_a_deleted_snapshot_mapped_keeps_it(disk: MemoryDisk) -> None:
    store = _written(disk, ID, LATER)
    mapped = store.content(ID)
    store.delete(ID)
    assert (store.ids, bytes(mapped)) == ((LATER,), CONTENT)
    assert SnapshotStore(disk, DIRECTORY).ids == (LATER,)


# ---- Fetching ------------------------------------------------------------------------------------------------------


def test_a_snapshot_fetched_in_parts_is_there_once_it_is_frozen(disk: MemoryDisk) -> None:  # A49
    store = SnapshotStore(disk, DIRECTORY)
    download = store.begin(ID)
    for position in range(0, len(CONTENT), 100):
        assert download.size_bytes == position
        download.append(CONTENT[position : position + 100])
    assert (store.ids, SnapshotStore(disk, "/elsewhere").ids) == ((), ())
    asyncio.run(store.freeze(download))
    assert store.ids == (ID,)
    assert bytes(store.content(ID)) == CONTENT


@pytest.mark.parametrize("fetched", [b"", CONTENT[:-1], CONTENT[:-8] + b"\1" * 8])
def test_what_was_fetched_and_is_no_whole_snapshot_is_forgotten(disk: MemoryDisk, fetched: bytes) -> None:
    store = SnapshotStore(disk, DIRECTORY)
    download = store.begin(ID)
    download.append(fetched)
    with pytest.raises(CorruptRecord, match="is damaged"):
        asyncio.run(store.freeze(download))
    assert (store.ids, disk.list(DIRECTORY)) == ((), [])


def test_a_fetch_that_begins_again_begins_at_0(disk: MemoryDisk) -> None:  # A49
    store = SnapshotStore(disk, DIRECTORY)
    store.begin(ID).append(b"old")
    download = store.begin(ID)
    assert (download.size_bytes, disk.size(download.path)) == (0, 0)
    download.abandon()
    download.abandon()
    assert disk.list(DIRECTORY) == []


# ---- Crashes and failures ------------------------------------------------------------------------------------------


def test_a_part_that_a_crash_left_is_removed(disk: MemoryDisk) -> None:  # A45
    _written(disk, LATER).begin(ID).append(CONTENT)
    disk.process_crash()
    assert SnapshotStore(disk, DIRECTORY).ids == (LATER,)
    assert disk.list(DIRECTORY) == [snapshot_name(LATER)]


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_a_snapshot_that_was_written_is_whole(seed: int, disk: MemoryDisk) -> None:  # A45
    _written(disk, ID)
    disk.power_loss(Random(seed))
    store = SnapshotStore(disk, DIRECTORY)
    assert bytes(store.content(ID)) == CONTENT


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("sync", [1, 2])
def test_a_power_cut_on_the_way_leaves_a_whole_one_or_none(
    seed: int, sync: int, disk: MemoryDisk
) -> None:  # A45
    store = _written(disk, LATER)
    disk.fail("sync", snapshot_name(ID) if sync == 1 else DIRECTORY)
    with pytest.raises(StorageError):
        asyncio.run(store.write(ID, [CONTENT[:500], CONTENT[500:]]))
    assert store.ids == (LATER,)
    disk.power_loss(Random(seed))
    after = SnapshotStore(disk, DIRECTORY)
    assert after.ids in ((LATER,), (ID, LATER))
    assert all(bytes(after.content(each)) == CONTENT for each in after.ids)


def test_a_full_disk_leaves_nothing_of_a_snapshot_behind(disk: MemoryDisk) -> None:
    store = _written(disk, LATER)
    disk.fill_up(100)
    with pytest.raises(DiskFull):
        asyncio.run(store.write(ID, [CONTENT]))
    assert (store.ids, disk.list(DIRECTORY)) == ((LATER,), [snapshot_name(LATER)])


def test_while_one_is_written_others_get_their_turn(disk: MemoryDisk) -> None:
    async def turns_during_write() -> int:
        writing = asyncio.ensure_future(SnapshotStore(disk, DIRECTORY).write(ID, [CONTENT] * 10))
        turns = 0
        while not writing.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(turns_during_write()) >= 10


@pytest.mark.parametrize("call", ["read", "map"])
def test_a_failing_disk_is_a_storage_error(disk: MemoryDisk, call: str) -> None:
    store = _written(disk, ID)
    disk.fail("read", times=1)
    with pytest.raises(StorageError, match=snapshot_name(ID)):
        store.read(ID, 0, 10) if call == "read" else store.content(ID)
