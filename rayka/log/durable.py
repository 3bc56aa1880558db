"""Replacing small files so that a power cut cannot tear them (A8). Kafka: `Utils.atomicMoveWithFallback`."""

import posixpath
from collections.abc import Mapping

from rayka.ports import Disk


async def replace_durably(disk: Disk, contents: Mapping[str, bytes]) -> None:
    """Replaces files so that after a power cut each has its old content or its new one, whole.

    On return the new content survives. All files share two syncs: of the contents, then of the names.
    """
    aside = {path: f"{path}.new" for path in contents}
    for path, data in contents.items():
        disk.write(aside[path], data)
    await disk.sync(list(aside.values()), [])
    for path in contents:
        disk.rename(aside[path], path)
    await disk.sync([], sorted({posixpath.dirname(path) for path in contents}))
