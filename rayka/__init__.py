"""Rayka: Kafka's log, rebuilt for people who live on Ray.

`import rayka` is cheap: a name is imported when it is first used, and with it what it needs.

It switches off Ray's hook for `uv run`, which would zip the working directory and build a whole environment again for
its workers: half a minute before Spark starts. Ray reads the variable once, when it is imported, and whichever module
of rayka imports it, this comes before.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rayka import forks as _forks  # registers its fork handler  # noqa: F401

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

if TYPE_CHECKING:
    from rayka import aio, errors, spark, testing
    from rayka.client.admin.admin import Admin
    from rayka.client.consumer.consumer import Consumer
    from rayka.client.consumer.offset_commits import OffsetAndMetadata, OffsetAndTimestamp
    from rayka.client.consumer.reader import read
    from rayka.client.consumer.record import Record
    from rayka.client.producer.acknowledgement import BatchFailure, BatchMetadata, RecordMetadata
    from rayka.client.producer.producer import Producer
    from rayka.cluster import Cluster
    from rayka.ids import TopicPartition
    from rayka.worker_pool.pool import workers

    __version__: str

__all__ = [
    "Admin",
    "BatchFailure",
    "BatchMetadata",
    "Cluster",
    "Consumer",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "Record",
    "RecordMetadata",
    "TopicPartition",
    "aio",
    "errors",
    "read",
    "spark",
    "testing",
    "workers",
]

_MODULES = {
    "Admin": "rayka.client.admin.admin",
    "BatchFailure": "rayka.client.producer.acknowledgement",
    "BatchMetadata": "rayka.client.producer.acknowledgement",
    "Cluster": "rayka.cluster",
    "Consumer": "rayka.client.consumer.consumer",
    "OffsetAndMetadata": "rayka.client.consumer.offset_commits",
    "OffsetAndTimestamp": "rayka.client.consumer.offset_commits",
    "Producer": "rayka.client.producer.producer",
    "Record": "rayka.client.consumer.record",
    "RecordMetadata": "rayka.client.producer.acknowledgement",
    "TopicPartition": "rayka.ids",
    "read": "rayka.client.consumer.reader",
    "workers": "rayka.worker_pool.pool",
}


def __getattr__(name: str) -> Any:
    if name not in (*__all__, "__version__"):
        raise AttributeError(f"module 'rayka' has no attribute {name!r}")
    if name == "__version__":
        found = import_module("importlib.metadata").version("rayka")
    else:
        module = _MODULES.get(name)
        found = import_module(f"rayka.{name}") if module is None else getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, and nothing else that the module holds."""
    return sorted((*__all__, "__version__"))
