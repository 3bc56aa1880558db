"""Spark on Ray: a RayDP session with the data source registered, set up to avoid RayDP's traps.

1. Executors ask Ray for no CPU: with every CPU taken, RayDP's first query would wait for ever without an error.
2. Spark's Python workers run this interpreter; without PYSPARK_PYTHON they run whatever `python3` the PATH has.
3. An application's name may be used once in the life of a Ray: each session gets a suffix of its own.
4. The data source carries the address of the session's Ray: one machine may run several.
5. Logs go where Ray's go, library copies away, and the driver's JVM ends with the session instead of with the program.

RayDP keeps one session in a process, so there is never more than one from here either.
"""

import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayka.errors import ConfigError, UnavailableError
from rayka.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ---- Removal of RayDP's library copies ----
#
# RayDP's JVM outside of Ray's workers unpacks Ray's native library (41 MB) into a new directory that no process
# removes. The library is mapped by then, so the directory can go at once, and nothing stays even after a kill.


_APP_MASTER = b"org.apache.spark.deploy.raydp.AppMasterEntryPoint"
_LIBRARY_COPY = re.compile(r"(/tmp/ray/\d+)/libcore_worker_library_java\.so$", re.MULTILINE)


def remove_library_copies(session_dir: str) -> list[Path]:
    """Removes the copies that the application master of this Ray session has mapped; returns their directories.

    Does nothing where there is no /proc.
    """
    copies = sorted({Path(copy) for process in _app_masters(session_dir) for copy in _mapped_copies(process)})
    for directory in copies:
        shutil.rmtree(directory)
    return copies


def _app_masters(session_dir: str) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile, or is another user's
            continue
        if _APP_MASTER in command and session_dir.encode() in command:
            yield process


def _mapped_copies(process: Path) -> list[str]:
    try:
        return _LIBRARY_COPY.findall((process / "maps").read_text())
    except OSError:  # as above
        return []


_JVM_END_TIMEOUT_SECONDS = 30
# The session that `init` has begun, if any: `stop` ends no other one.
_begun: list[str] = []
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
_MASTER_OPTIONS = "spark.ray.raydp_app_master.extraJavaOptions"
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SHORT_JOB = {
    **dict.fromkeys((_DRIVER_OPTIONS, _EXECUTOR_OPTIONS, _MASTER_OPTIONS), _QUICK_JVM),
    "spark.sql.shuffle.partitions": "2",
}  # for `configs` of a job of seconds: the JVMs start with 40 % less work, and would run long jobs slower
_SETTINGS = {
    "spark.ray.raydp_spark_executor.actor.resource.cpu": "0",
    "spark.log4j.config.file.name": str(Path(__file__).with_name("log4j2.properties")),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def init(
    app_name: str = "rayka",
    *,
    executors: int = 1,
    cores: int = 1,
    memory: str = "1g",
    configs: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A Spark session whose executors are Ray actors, with the format `rayka` registered.

    Runs on the Ray that this process is connected to, or else, as clients do, on the running one; starts none.
    `cores` and `memory` are per executor; `configs` are further Spark settings and win over ours. Takes 10 to 30 s.
    End it with `rayka.spark.stop()`.
    Raises UnavailableError (no Java 17, extra `rayka[spark]` not installed, no Ray) and ConfigError.
    """
    if executors < 1 or cores < 1:
        raise ConfigError(f"executors and cores are at least 1, found executors={executors}, cores={cores}")
    require_spark()
    ray_address, node = _connected()
    import raydp  # takes seconds

    from rayka.actors.ray_connection import kept_signal_handlers

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    name = f"{app_name}-{secrets.token_hex(4)}"
    _begun.append(name)
    with kept_signal_handlers():
        session = raydp.init_spark(
            app_name=name,
            num_executors=executors,
            executor_cores=cores,
            executor_memory=memory,
            fault_tolerant_mode=False,
            configs=_all_settings(node, configs or {}),
        )
    if node is not None:
        remove_library_copies(node.get_session_dir_path())
    register(session, ray_address=ray_address, slot_count=executors * cores)
    return session


def require_spark() -> None:
    """Raises UnavailableError with advice unless Java 17 and the extra `rayka[spark]` are installed."""
    require_java()
    missing = [name for name in ("pyspark", "raydp") if find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"{' and '.join(missing)} not found; install the extra: pip install 'rayka[spark]'"
        )


def register(session: "SparkSession", *, ray_address: str, slot_count: int) -> None:
    """Registers the format `rayka` with defaults of this session: which Ray, and how many tasks run at once."""
    from rayka.spark.source import RaykaDataSource

    defaults = {"default_ray_address": ray_address, "default_slot_count": slot_count}
    session.dataSource.register(type("RaykaDataSource", (RaykaDataSource,), defaults))


def stop() -> None:
    """Ends the session made by `init`, its executors and its JVM; does nothing without one.

    The program itself ends a session that it made by RayDP's `init_spark`.
    """
    if not _begun:
        return
    _begun.clear()
    sys.modules["raydp"].stop_spark()
    _end_driver_jvm()


def _end_driver_jvm() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_JVM_END_TIMEOUT_SECONDS)


def _connected() -> tuple[str, Any | None]:
    """The address of this process's Ray, and what it knows of its files: None where this version of Ray has no such
    thing, so that its JVMs choose where to log.
    """
    from rayka.actors.ray_connection import connect
    from rayka.actors.ray_internals import part

    return connect(), part("ray._private.worker", "_global_node")


def _all_settings(node: Any | None, configs: Mapping[str, str]) -> dict[str, str]:
    """Rayka's settings, overridden by the user's; options of the driver's JVM are joined instead."""
    logs = "" if node is None else f"-Dray.logging.dir={node.get_logs_dir_path()} "
    driver_options = logs + configs.get(_DRIVER_OPTIONS, "")
    return {**_SETTINGS, **configs, _DRIVER_OPTIONS: driver_options.strip()}
