"""The data directories whose files a reader may map, and when it stops (design §3)."""

import shutil
import tempfile
from collections.abc import Iterator
from uuid import UUID

import pytest

from rayka.log.local_disk import LocalDisk
from rayka.log.mapped_reader import LocalDirectories
from rayka.log.meta_properties import MetaProperties, encode_meta_properties
from rayka.protocol.membership import RegisteredDirectory
from tests.descriptors import none_free

HERE, ELSEWHERE = UUID(int=5), UUID(int=6)


@pytest.fixture
def path() -> Iterator[str]:
    root = tempfile.mkdtemp()
    LocalDisk().write(f"{root}/meta.properties", encode_meta_properties(MetaProperties(1, HERE)))
    yield root
    shutil.rmtree(root)


def test_only_directories_that_are_what_their_broker_says_may_be_read(path: str) -> None:
    directories = [
        RegisteredDirectory(HERE, path),
        RegisteredDirectory(ELSEWHERE, path),
        RegisteredDirectory(UUID(int=7), path + "x"),
    ]
    local = LocalDirectories()
    assert local.ids(directories) == (HERE,)
    assert repr(local) == "<LocalDirectories known=3 misses=0>"


def test_a_directory_is_looked_at_once(path: str) -> None:
    local = LocalDirectories()
    assert local.ids([RegisteredDirectory(HERE, path)]) == (HERE,)
    LocalDisk().unlink(f"{path}/meta.properties")
    assert local.ids([RegisteredDirectory(HERE, path)]) == (HERE,)
    assert LocalDirectories().ids([RegisteredDirectory(HERE, path)]) == ()


def test_a_reader_that_misses_three_files_in_a_row_reads_none_any_more(path: str) -> None:
    """Another mount stands under the same path."""
    local = LocalDirectories()
    for is_found in (False, False, True, False, False):
        local.on_read(is_found=is_found)
        assert local.ids([RegisteredDirectory(HERE, path)]) == (HERE,)
    local.on_read(is_found=False)
    assert local.ids([RegisteredDirectory(HERE, path)]) == ()


def test_a_reader_without_a_descriptor_reads_over_the_network_for_a_while_and_forgets_nothing(
    path: str,
) -> None:
    """Neither the directory nor what is in it has changed."""
    local, directories = LocalDirectories(), [RegisteredDirectory(HERE, path)]
    with none_free():
        assert local.ids(directories) == ()
    assert local.ids(directories) == (HERE,)
    for _ in range(3):
        local.on_no_descriptor()
    looks = [local.ids(directories) for _ in range(11)]
    assert looks == [()] * 10 + [(HERE,)]
