"""`rayka demo`: the command. What it does is in `rayka_demo.story`, imported late so that `--help` answers at once."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import click
import ray

from rayka.actors import ray_connection, ray_process
from rayka.actors.node_placement import cpus_of_nodes
from rayka.cli.cluster_commands import end_ray, ensure_ray
from rayka.cli.shared_options import quiet_option
from rayka.cluster import Cluster
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import RaykaError
from rayka.options import Transport


@click.command()
@click.option(
    "--keep", is_flag=True, help="Leave the cluster up and say how to use it; `rayka stop` ends it."
)
@click.option("--no-spark", is_flag=True, help="Leave out the Spark job.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the outcome as one JSON object and nothing else."
)
@quiet_option
@click.option(
    "--transport",
    type=click.Choice(get_args(Transport)),
    default="auto",
    help="Whether hot calls take direct lanes, or all go by Ray.",
)
def demo(keep: bool, no_spark: bool, as_json: bool, transport: Transport) -> int:
    """Send 336,776 real flights through a topic, read them back, and analyse them with Spark.

    Uses the running Ray or starts one, makes a cluster of three brokers in a temporary directory, publishes the flights
    that left New York in 2013, kills a broker half way, reads them with a group of consumers that loses a member half
    way, lets PySpark compute the mean departure delay by carrier, checks that nothing was lost or changed, and leaves
    nothing running. Takes a minute and a half.
    """
    from rayka_demo.flights import find_flights

    find_flights("demo" if no_spark else "demo,spark")
    from rayka_demo.story import run_demo

    return 0 if run_demo(keep=keep, with_spark=not no_spark, as_json=as_json, transport=transport) else 1


# Where a demo runs: a directory, a Ray and a cluster, each gone when the demo ends, unless they are to be kept.
#
# All are context managers: left by an exception, also by Ctrl-C, they clean up in any case.


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
