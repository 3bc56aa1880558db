"""The places of a demo: a directory, a Ray and a cluster, each removed when the demo ends, unless it is kept.

`demo` imports this module late: it loads Ray, which a demo without its data never needs.

All are context managers: left by an exception, also by Ctrl-C, they clean up in any case.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rayka.actors import ray_connection, ray_process
from rayka.actors.node_placement import cpus_of_nodes
from rayka.cli.cluster_commands import end_ray, ensure_ray
from rayka.cluster import Cluster
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import RaykaError
from rayka.options import Transport

BROKER_COUNT = 3


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
    has_started = keep and ensure_ray(ray_connection.AUTO, ClusterSpec(brokers=BROKER_COUNT))
    try:
        address = ray_connection.connect_or_start(
            temp_dir=directory, cpus_of_nodes=cpus_of_nodes(ClusterSpec(brokers=BROKER_COUNT))
        )
        ray_connection.silence()  # a broker is killed on purpose
        yield address
    except BaseException:
        if has_started:
            end_ray()
        raise
    finally:
        ray.shutdown()


@contextmanager
def demo_cluster(name: str, directory: str, transport: Transport, *, keep: bool) -> Iterator[Cluster]:
    """A cluster of that name with its data in the directory: three brokers, so that one may be killed, and one
    controller, which is up sooner than three. Raises ClusterExists when there is one already.
    """
    cluster = Cluster.start(
        name=name,
        brokers=BROKER_COUNT,
        data_dir=directory,
        transport=transport,
        config={"default.replication.factor": BROKER_COUNT, "min.insync.replicas": BROKER_COUNT - 1},
    )
    try:
        yield cluster
    except BaseException as error:
        try:
            cluster.stop(delete_data=True)
        except RaykaError as failure:
            error.add_note(f"the cluster could not be stopped either: {failure}")
        raise
    if not keep:
        cluster.stop(delete_data=True)
