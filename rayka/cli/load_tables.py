"""Tables of `rayka broker load` and `rayka topic load`. Rates are per second."""

from typing import TYPE_CHECKING

from rayka.cli.output import Count, Style, print_table, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rayka.client.admin.admin_load_results import BrokerLoadInfo, PartitionLoadInfo
    from rayka.client.admin.admin_partition_results import ConfigValue


_BROKER_COLUMNS = ("broker", "cpu", "in/s", "out/s", "repl in/s", "size", "free", "replicas", "leaders")
_PARTITION_COLUMNS = ("partition", "broker", "role", "in/s", "rec in/s", "out/s", "rec out/s", "size")
_UNKNOWN, _FENCED = "unknown", "fenced"


def print_broker_loads(brokers: "Sequence[BrokerLoadInfo]") -> None:
    """Prints a table of brokers, at most 80 columns wide.

    The load of a broker without a report is unknown; of a fenced broker only the sizes are known.
    """
    rows = [(each.node_id, *_broker_cells(each)) for each in brokers]
    styles = [
        Style.BAD if each.is_fenced else Style.PLAIN if each.is_known else Style.NOTE for each in brokers
    ]
    print_table("Load of brokers", _BROKER_COLUMNS, rows, styles)


def print_partition_loads(partitions: "Sequence[PartitionLoadInfo]") -> None:
    """Prints a table of replicas, the busiest first, at most 80 columns wide for short names of topics."""
    busiest = sorted(
        partitions, key=lambda each: (each.bytes_in + each.bytes_out, each.size_bytes), reverse=True
    )
    print_table("Busiest and largest partitions", _PARTITION_COLUMNS, list(map(_partition_cells, busiest)))


def _broker_cells(load: "BrokerLoadInfo") -> tuple[object, ...]:
    if not load.is_known:
        return (_FENCED if load.is_fenced else _UNKNOWN,) + ("-",) * (len(_BROKER_COLUMNS) - 2)
    if load.is_fenced:
        held = (size(load.size_bytes), size(load.free_bytes), Count(load.partition_count))
        return (_FENCED, "-", "-", "-", *held, "-")
    return (
        f"{load.processor_share:.0%}",
        size(load.bytes_in),
        size(load.bytes_out),
        size(load.replication_bytes_in),
        size(load.size_bytes),
        size(load.free_bytes),
        Count(load.partition_count),
        Count(load.leader_count),
    )


def _partition_cells(load: "PartitionLoadInfo") -> tuple[object, ...]:
    return (
        f"{load.topic}-{load.partition}",
        load.broker_id,
        "leader" if load.is_leader else "follower",
        size(load.bytes_in),
        Count(load.records_in),
        size(load.bytes_out),
        Count(load.records_out),
        size(load.size_bytes),
    )


# What `rayka broker config describe` and `rayka topic describe --configs` show of settings in force.


def print_configs(values: "Sequence[ConfigValue]") -> None:
    """A table of settings, each with where it comes from."""
    rows = [
        (each.name, each.value, each.source.name.lower(), "no" if each.is_read_only else "yes")
        for each in values
    ]
    print_table("Configuration", ("key", "value", "source", "alterable"), rows)
