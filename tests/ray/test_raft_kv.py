"""The replicated key-value store of `examples/raft_kv.py` on a real Ray: what was written stays, reads go not back."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from examples.raft_kv import KvStore, start

pytestmark = pytest.mark.ray
EXAMPLE = Path(__file__).parents[2] / "examples" / "raft_kv.py"


@pytest.fixture(scope="module")
def replicas(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    actors = start(str(tmp_path_factory.mktemp("kv")))
    yield actors
    for each in actors:
        ray.kill(each)


class _Reader(threading.Thread):
    """Reads a counter again and again; what it finds may not be older than what had been written before it asked."""

    def __init__(self, store: KvStore, written: list[int]) -> None:
        super().__init__(name="reader")
        self._store = store
        self._written = written
        self._is_stopping = False
        self.stale: list[tuple[int, int]] = []
        self.read_count = 0

    def run(self) -> None:
        newest = 0
        while not self._is_stopping:
            newest = max(newest, self._written[-1])
            found = int(self._store.get("counter") or 0)
            if found < newest:
                self.stale.append((found, newest))
            newest = max(newest, found)
            self.read_count += 1

    def stop(self) -> None:
        self._is_stopping = True
        self.join(60)
        assert not self.is_alive()


def test_reads_are_linearizable_while_leaders_are_killed(replicas: list[Any]) -> None:
    written, store = [0], KvStore(replicas)
    reader = _Reader(KvStore(replicas), written)
    reader.start()
    try:
        for number in range(1, 61):
            store.set("counter", str(number))
            written.append(number)
            if number % 25 == 0:
                store.kill_leader()
    finally:
        reader.stop()
    assert reader.stale == []
    assert reader.read_count > 20
    assert store.get("counter") == "60"


def test_a_deleted_key_is_gone_and_others_stay(replicas: list[Any]) -> None:
    store = KvStore(replicas)
    store.set("a", "1")
    store.set("b", "2")
    store.delete("a")
    assert (store.get("a"), store.get("b")) == (None, "2")


def test_the_example_prints_what_happened(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run(sys.executable, str(EXAMPLE), RAY_ADDRESS="local")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()  # among them what Ray has to say of the process that was killed
    assert lines[0] == "wrote ten keys and deleted one; key-7 is 49"
    assert lines[-1].startswith("the leader was killed; another one answered after ")
    assert lines[-1].endswith(f"{[None if n == 3 else str(n * n) for n in range(10)]}")
