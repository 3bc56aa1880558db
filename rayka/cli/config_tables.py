"""What `rayka broker config describe` and `rayka topic describe --configs` show of settings in force."""

from typing import TYPE_CHECKING

from rayka.cli.output import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayka.client.admin.admin_partition_results import ConfigValue


def print_configs(values: "Sequence[ConfigValue]") -> None:
    """A table of settings, each with where it comes from."""
    rows = [
        (each.name, each.value, each.source.name.lower(), "no" if each.is_read_only else "yes")
        for each in values
    ]
    print_table("Configuration", ("key", "value", "source", "alterable"), rows)
