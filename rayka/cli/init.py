"""`rayka init`: a cluster specification to start from. The template is the `cluster.yaml` beside this file."""

from importlib.resources import files
from pathlib import Path

import click

from rayka.cli.output import print_json
from rayka.cli.shared_options import json_option
from rayka.errors import ConfigError


@click.command()
@click.argument(
    "path", metavar="[FILE]", required=False, default="cluster.yaml", type=click.Path(path_type=Path)
)
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
def init(path: Path, force: bool, as_json: bool) -> None:
    """Write a commented cluster specification to FILE (default: ./cluster.yaml), for `rayka start`."""
    text = files("rayka.cli").joinpath("cluster.yaml").read_text()
    try:
        with path.open("w" if force else "x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"path": str(path)})
        return
    click.echo(f"wrote {path}; edit it, then start the cluster: rayka start {path}")
