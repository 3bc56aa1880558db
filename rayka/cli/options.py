"""Options that several commands share, and the client that they lead to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rayka.client.admin import Admin

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def cluster_options(function: FunctionT) -> FunctionT:
    """`--cluster` and `--address`: which cluster, on which Ray."""
    function = click.option(
        "--address", default="auto", show_default=True, metavar="HOST:PORT", help="The Ray to use."
    )(function)
    return click.option("--cluster", "name", default="rayka", show_default=True, help="The cluster's name.")(
        function
    )


def json_option(function: FunctionT) -> FunctionT:
    """`--json`: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


@contextmanager
def admin_of(name: str, address: str, **options: Any) -> "Iterator[Admin]":
    """A client of the running cluster of that name; `options` are those of an `Admin`."""
    from rayka.client.admin import Admin
    from rayka.cluster import Cluster

    with Admin(cluster=Cluster.connect(name, address=address), **options) as admin:
        yield admin
