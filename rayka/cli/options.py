"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

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
