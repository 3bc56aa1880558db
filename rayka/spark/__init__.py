"""Spark on Ray through RayDP, and the data source `rayka`.

`init(app_name, executors, cores, memory)` gives a session with the format registered, `stop()` ends it;
`RaykaDataSource` can be registered on any other session. Importing this package needs neither pyspark nor raydp.
"""

from typing import TYPE_CHECKING, Any

from rayka.errors import UnavailableError
from rayka.spark.session import init, register, stop

if TYPE_CHECKING:
    from rayka.spark.source import RaykaDataSource

__all__ = ["RaykaDataSource", "init", "register", "stop"]


def __getattr__(name: str) -> Any:
    if name != "RaykaDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from rayka.spark.source import RaykaDataSource
    except ImportError as error:
        raise UnavailableError(f"Spark needs the extra: pip install 'rayka[spark]' ({error})") from error
    return RaykaDataSource
