"""What RayDP would leave behind, taken away.

Its JVM that is no Ray worker unpacks Ray's native library (41 MB) into a new directory under /tmp/ray, which no process
removes. The library is mapped by then, so the directory can go at once, and nothing stays even after a kill.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

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
