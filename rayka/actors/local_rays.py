"""The Rays on this machine, found as Ray's own `auto` finds them: by the arguments of their processes, and by the file
in which `ray start` writes the address of the Ray that it started last.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rayka.actors.ray_internals import address_file

_FLAG = "--gcs-address="


def raylets() -> Iterator[list[str]]:
    """Yields the arguments of the raylets on this machine. An argument with spaces counts as several."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # The process may have ended, or belong to another user.
        with suppress(OSError):
            program, *arguments = path.read_text(errors="replace").replace(" ", "\0").split("\0")
            if "raylet" in Path(program).name:
                yield arguments


def running() -> list[str]:
    """Returns the addresses of the Rays that have a process on this machine, sorted."""
    addresses = {each.removeprefix(_FLAG) for every in raylets() for each in every if each.startswith(_FLAG)}
    return sorted(addresses - {""})


def has_node(node_id: str) -> bool:
    """Whether the raylet of this Ray node is among the processes of this machine that can be seen."""
    return any(f"--node_id={node_id}" in every for every in raylets())


def started_last() -> str | None:
    """Returns the address of the Ray that `ray start` or `rayka start` started last, whether it runs or not."""
    try:
        return address_file().read_text().strip() or None
    except OSError:
        return None


def record(address: str) -> None:
    """Makes a Ray the one that `ray.init("auto")`, `ray.init()` and `ray status` find, as `ray start` does."""
    file = address_file()
    # In another user's directory the Ray is found by its address only.
    with suppress(OSError):
        file.parent.mkdir(mode=0o777, parents=True, exist_ok=True)
        file.write_text(address)


def forget(address: str) -> None:
    """Removes the record of a Ray that has ended. Leaves the record of another one that started since."""
    if started_last() == address:
        address_file().unlink(missing_ok=True)
