"""Where a demo runs: a directory, a Ray and a cluster, each gone when the demo ends, unless they are to be kept.

All are context managers: left by an exception, also by Ctrl-C, they clean up in any case.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rayka.actors import ray_connection, ray_process
from rayka.cluster import Cluster
from rayka.errors import UnavailableError


@contextmanager
def demo_directory(*, keep: bool) -> Iterator[str]:
    """A new directory, short enough for Ray's sockets."""
    directory = ray_process.make_temp_dir()
    try:
        yield directory
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def demo_ray(directory: str, *, keep: bool) -> Iterator[str]:
    """Connects this process to the running Ray, or to one started for the demo, and gives its address.

    One that was started keeps its files in the directory and ends with the demo; one to be kept is a process of its
    own, remembered for `rayka stop`. Raises UnavailableError when Ray cannot be reached or does not start.
    """
    started = _start_to_keep() if keep else None
    try:
        yield ray_connection.connect_or_start(temp_dir=directory)
    except BaseException:
        ray.shutdown()
        if started:
            ray_process.forget()
            started.stop()
        raise
    ray.shutdown()


@contextmanager
def demo_cluster(name: str, directory: str, *, keep: bool) -> Iterator[Cluster]:
    """A cluster of that name with its data in the directory. Raises ClusterExists when there is one already."""
    cluster = Cluster.start(name=name, data_dir=directory)
    try:
        yield cluster
    except BaseException:
        cluster.stop(delete_data=True)
        raise
    if not keep:
        cluster.stop(delete_data=True)


def _start_to_keep() -> ray_process.RayProcess | None:
    """A Ray that outlives this command; None when there is one already."""
    try:
        ray_connection.connect()
    except UnavailableError:
        process = ray_process.start()
        ray_process.remember(process)
        return process
    return None
