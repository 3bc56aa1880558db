"""The Spark data source `rayka`: batch reads of topics, as Spark's Kafka connector offers them.

Planning, on the driver, fixes the offsets and asks for the segment files of partitions whose broker is on that machine;
a task maps those files, or fetches from the broker what it cannot map. Everything a task needs is in its
`RangePartition`: what planning leaves on the reader is not there any more when Spark reads.

Imports are few, because every Python worker of Spark pays for them: what talks to the cluster, Ray with it, is loaded
only where the cluster is asked.

Left out: writes and streams, each refused by one ConfigError; pushed-down filters (Spark refuses such a reader by
default, and keeps an accepted one for later queries without the filter).
"""

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NoReturn

import pyarrow as pa
import ray
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rayka.actors import ray_connection
from rayka.client import io_thread
from rayka.client.bootstrap import ClusterHandle, resolve
from rayka.errors import ConfigError
from rayka.protocol.fetch import FileRange
from rayka.spark.partition_reader import read_range
from rayka.spark.plan import OffsetRange, plan_ranges, split_ranges
from rayka.spark.schema import ddl_schema
from rayka.spark.source_options import ReadOptions

if TYPE_CHECKING:
    from rayka.spark.topic_client import TopicClient


_PLANNING_TIMEOUT_SECONDS = 120
_NO_WRITES = (
    'rayka source: the format "rayka" cannot be written to yet, neither by a batch nor by a stream; send the rows with '
    "rayka.Producer, for example send_batch in each partition (DataFrame.foreachPartition), or in each batch of a "
    "stream (foreachBatch)"
)
_NO_STREAMS = (
    'rayka source: the format "rayka" cannot be read as a stream yet; read it in batches with spark.read and '
    "startingOffsets, or consume it with rayka.Consumer"
)


class RangePartition(InputPartition):  # type: ignore[misc]
    """One task's share: a range of offsets, and where it lies on the disk of the machine that planned the query."""

    def __init__(self, offsets: OffsetRange, file_ranges: tuple[FileRange, ...]) -> None:
        super().__init__(repr(offsets))
        self.offsets = offsets
        self.file_ranges = file_ranges


class RaykaDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("rayka")`: columns key, value, topic, partition, offset, timestamp, timestampType [headers].

    Options: cluster, rayAddress, subscribe, startingOffsets, endingOffsets, includeHeaders, columns, failOnDataLoss,
    minPartitions, transport. Register it on any session with `spark.dataSource.register(RaykaDataSource)`;
    `rayka.spark.init` registers it with its own Ray as the default.
    """

    default_ray_address: ClassVar[str] = ""
    default_slot_count: ClassVar[int] = 1

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        # Parsed when needed: an operation that is not supported is named first, before any wrong option.
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rayka"

    def schema(self) -> str:
        return ddl_schema(ReadOptions.parse(self._given).columns)

    def reader(self, schema: StructType) -> "RaykaReader":
        options = ReadOptions.parse(self._given)
        if tuple(schema.fieldNames()) != options.columns:
            raise ConfigError(
                f"rayka source: the schema is fixed: {ddl_schema(options.columns)}; found {schema.simpleString()};"
                ' choose columns with the option "columns"'
            )
        address = options.ray_address or self.default_ray_address
        return RaykaReader(options, address, self.default_slot_count)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise ConfigError(_NO_WRITES)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's name
        raise ConfigError(_NO_WRITES)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802 - Spark's name
        raise ConfigError(_NO_STREAMS)

    def simpleStreamReader(self, schema: StructType) -> NoReturn:  # noqa: N802 - Spark's name
        raise ConfigError(_NO_STREAMS)


class RaykaReader(DataSourceReader):  # type: ignore[misc]
    """One batch read of one query."""

    def __init__(self, options: ReadOptions, ray_address: str, slot_count: int) -> None:
        self._options = options
        self._ray_address = ray_address
        self._slot_count = slot_count

    def partitions(self) -> list[InputPartition]:
        """The tasks, offsets fixed. Runs in Spark's planner, on the driver's machine."""
        return io_thread.run(partial(self._plan, self._client()), _PLANNING_TIMEOUT_SECONDS)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one task, in a Python worker of an executor; fetches only records that are not local."""
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark plans one task of its own when there are none
        return read_range(self._options, partition.offsets, partition.file_ranges, self._client)

    def _client(self) -> "TopicClient":
        from rayka.spark.source import find_cluster
        from rayka.spark.topic_client import TopicClient

        cluster = find_cluster(self._options.cluster, self._ray_address)
        return TopicClient(cluster, self._options.transport)

    async def _plan(self, client: "TopicClient") -> list[InputPartition]:
        from rayka.spark.topic_client import available_ranges, located

        available = await available_ranges(self._options, client)
        whole = plan_ranges(self._options, available)
        pieces = split_ranges(whole, min_partitions=self._options.min_partitions, slot_count=self._slot_count)
        files = await asyncio.gather(*(located(each, self._options, client) for each in pieces))
        return [RangePartition(*each) for each in zip(pieces, files, strict=True)]


# ---- The connection of a Spark Python worker to Ray: one, and kept, because Spark reuses workers ----
#
# A connection made here follows when another Ray is asked for (a session that reads from two); one that the process had
# before, such as the driver's, is left alone.


_ours = False


def find_cluster(name: str, ray_address: str) -> ClusterHandle:
    """The cluster of that name on the Ray at an address; empty: the one that runs on this machine.

    Raises ClusterNotFound, or UnavailableError when there is no Ray.
    """
    global _ours  # noqa: PLW0603 - a process has one connection to Ray
    if _ours and ray_address and ray_address != ray_connection.current_address():
        ray.shutdown()
    was_connected = ray.is_initialized()
    ray_connection.connect(ray_address or ray_connection.AUTO)
    _ours = _ours or not was_connected
    return resolve(name)
