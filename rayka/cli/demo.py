"""`rayka demo`: the command. What it does is in `rayka_demo.story`, imported late so that `--help` answers at once."""

from typing import get_args

import click

from rayka.cli.shared_options import quiet_option
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
