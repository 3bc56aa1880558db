"""Where the benchmarks play: a Ray and a cluster of their own, ended with all they leave, and a look at the calls."""

import logging
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

import rayka
from rayka.options import Transport
from rayka.ports import Network, Request
from rayka.protocol.fetch import FetchRequest, FetchResponse
from rayka.protocol.produce import ProduceRequest

ResponseT = TypeVar("ResponseT")
_WAIT_S = 60.0


@contextmanager
def local_ray() -> Iterator[Path]:
    """A Ray on this machine for the time of the block; gives a directory that is removed with it."""
    import ray

    directory = Path(tempfile.mkdtemp(prefix="rayka-bench-"))
    try:
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(directory / "ray"),
        )
        yield directory
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)  # Ray's processes are still writing their last words


@contextmanager
def running_cluster(
    directory: Path,
    *,
    controllers: int = 1,
    brokers: int = 1,
    coordinators: int = 0,
    transport: Transport = "auto",
    config: Mapping[str, Any] | None = None,
) -> Iterator[rayka.Cluster]:
    """Controllers, brokers and coordinators on the Ray of this process."""
    name = f"bench-{controllers}-{brokers}-{coordinators}-{transport}"
    counts = {"controllers": controllers, "brokers": brokers, "coordinators": coordinators}
    data_dir = str(directory / name)
    with rayka.Cluster.start(
        name=name, data_dir=data_dir, transport=transport, config=dict(config or {}), **counts
    ) as cluster:
        yield cluster


def pid_of(cluster: rayka.Cluster, role: str = "broker", node_id: int | None = None) -> int:
    """The process of a node, of any with that role unless one is named; one that is starting is waited for."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        for each in cluster.describe().nodes:
            is_it = role in each.roles if node_id is None else each.node_id == node_id
            if is_it and each.pid is not None:
                return each.pid
        time.sleep(0.1)
    raise RuntimeError(f"no process of {node_id or role} within {_WAIT_S:g} s: {cluster.describe().nodes}")


def cpu_seconds(work: Callable[[], object], pids: Mapping[str, int]) -> dict[str, float]:
    """The processor time that each process spends on the work."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    before = {name: _cpu_s(process) for name, process in processes.items()}
    work()
    return {name: _cpu_s(process) - before[name] for name, process in processes.items()}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class WatchedCluster:
    """A cluster's handle whose clients' calls are counted: the limit then makes calls of the same sizes.

    `is_remote` hides from brokers that the reader is on their machine, so they answer with bytes.
    """

    def __init__(self, cluster: rayka.Cluster, *, is_remote: bool = False) -> None:
        self._cluster = cluster
        self.broker_pid = pid_of(cluster)
        self.is_remote = is_remote
        self.sizes: list[int] = []
        self.in_flight = 0
        self.in_flight_max = 0

    @property
    def name(self) -> str:
        return self._cluster.name

    def network(self, transport: Transport = "auto") -> "WatchedNetwork":
        return WatchedNetwork(self._cluster.network(transport), self)

    def calls(self) -> str:
        """What was counted, in words."""
        megabytes = statistics.median(self.sizes) / 2**20
        return f"{len(self.sizes)} calls, median {megabytes:.2f} MB, at most {self.in_flight_max} in flight"

    def forget(self) -> None:
        self.sizes.clear()
        self.in_flight_max = 0


class WatchedNetwork:
    """The network port of a watched cluster."""

    def __init__(self, network: Network, watched: WatchedCluster) -> None:
        self._network = network
        self._watched = watched

    async def node_ids(self) -> Sequence[int]:
        return await self._network.node_ids()

    async def call(self, node_id: int, request: Request[ResponseT], timeout_ms: int) -> ResponseT:
        sent: Any = request
        if isinstance(request, FetchRequest) and self._watched.is_remote:
            sent = msgspec.structs.replace(request, local_directory_ids=())
        self._watched.in_flight += 1
        self._watched.in_flight_max = max(self._watched.in_flight_max, self._watched.in_flight)
        try:
            response: ResponseT = await self._network.call(node_id, sent, timeout_ms)
        finally:
            self._watched.in_flight -= 1
        size_bytes = _payload_bytes(request) or _payload_bytes(response)
        if size_bytes:
            self._watched.sizes.append(size_bytes)
        return response


def _payload_bytes(message: Any) -> int:
    if isinstance(message, ProduceRequest | FetchResponse):
        return sum(each.records.size for each in message.partitions)
    return 0
