"""Notes of when a process passes certain functions of rayka, taken from outside: the functions are wrapped as their
modules are imported, and each note is 16 bytes in a mapped file of the process.

The clock is the machine's, so notes of several processes can be compared. A note takes about half a microsecond.
"""

import functools
import importlib
import inspect
import mmap
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from pathlib import Path
from struct import Struct
from types import ModuleType
from typing import Any, NamedTuple

DIRECTORY_VARIABLE = "RAYKA_BENCH_HOP_MARKS"
_NOTE = Struct("<QQ")  # which mark, and when, in ns
_NOTES_MAX = 1 << 20


class Hop(NamedTuple):
    """A function, and the marks at its begin and its end; "" for none. Of the named argument's `api` it counts only
    calls of that API: an API's name, a request's class, or a call.
    """

    module: str
    function: str
    begin: str
    end: str
    api: str = ""
    argument: int = 0


HOPS = (
    Hop("rayka.client.producer.sender", "Sender._produce", "the IO thread begins", ""),
    Hop("rayka.protocol.caller", "Caller.encode_call", "", "the call is encoded", "ProduceRequest", 2),
    Hop("rayka.protocol.caller", "Caller.decode_answer", "the answer is there", "", "produce", 1),
    Hop("rayka.protocol.caller", "Caller.encode_call", "", "the next fetch is encoded", "FetchRequest", 2),
    Hop("rayka.protocol.caller", "Caller.decode_answer", "the records are there", "", "fetch", 1),
    Hop("rayka.node.inbox", "Inbox.start", "the call arrives", "the answer is ready", "produce", 1),
    Hop("rayka.node.inbox", "Inbox.start", "the fetch arrives", "the fetch is answered", "fetch", 1),
    Hop(
        "rayka.partition.partition_leader",
        "PartitionLeader.append_all",
        "the append begins",
        "the append ends",
    ),
    Hop("rayka.partition.partition_leader", "PartitionLeader.record_fetch", "the fetch is recorded", ""),
    Hop("rayka.partition.partition_follower", "PartitionFollower.append", "", "the copy is made"),
)
NAMES: tuple[str, ...] = tuple(name for hop in HOPS for name in (hop.begin, hop.end) if name)


class Note(NamedTuple):
    """A process passed a mark."""

    at_ns: int
    pid: int
    name: str


def install() -> None:
    """Wraps the functions of this process, those that are there and those that will be imported."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return
    notes = Notebook(Path(directory))
    for name in {hop.module: None for hop in HOPS}:
        if name in sys.modules:
            _wrap_in(sys.modules[name], notes)
    sys.meta_path.insert(0, _Finder(notes))


def check() -> None:
    """Raises AttributeError when a function is no longer where it is looked for."""
    for hop in HOPS:
        _owner_of(hop, importlib.import_module(hop.module))


def read(directory: Path) -> list[Note]:
    """The notes of all processes, in order of time."""
    notes = []
    for path in directory.glob("*.notes"):
        for index, at_ns in _NOTE.iter_unpack(path.read_bytes()):
            if at_ns:
                notes.append(Note(at_ns, int(path.stem), NAMES[index]))
    return sorted(notes)


class Notebook:
    """The notes of this process; the file is made with the first one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        self._mapped: mmap.mmap | None = None

    def add(self, index: int) -> None:
        """The process passes a mark now. From any thread."""
        at_ns, number = time.perf_counter_ns(), next(self._numbers)
        if number < _NOTES_MAX:
            _NOTE.pack_into(self._mapped or self._map(), number * _NOTE.size, index, at_ns)

    def _map(self) -> mmap.mmap:
        with (self._directory / f"{os.getpid()}.notes").open("a+b") as file:
            file.truncate(_NOTES_MAX * _NOTE.size)
            self._mapped = mmap.mmap(file.fileno(), 0)
        return self._mapped


class _Finder(MetaPathFinder):
    """Wraps the functions of a module when it is imported."""

    def __init__(self, notes: Notebook) -> None:
        self._notes = notes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if all(hop.module != fullname for hop in HOPS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _wrap_in(module, self._notes)

            loader.exec_module = exec_module
        return spec


def _wrap_in(module: ModuleType, notes: Notebook) -> None:
    for hop in HOPS:
        if hop.module == module.__name__:
            owner, name = _owner_of(hop, module)
            setattr(owner, name, noting(getattr(owner, name), hop, notes))


def _owner_of(hop: Hop, module: ModuleType) -> tuple[type, str]:
    class_name, _, name = hop.function.partition(".")
    owner = getattr(module, class_name)
    getattr(owner, name)
    return owner, name


def noting(function: Callable[..., Any], hop: Hop, notes: Notebook) -> Callable[..., Any]:
    """The function with notes of its begin and its end."""
    begin = NAMES.index(hop.begin) if hop.begin else None
    end = NAMES.index(hop.end) if hop.end else None

    async def until_done(result: Awaitable[Any]) -> Any:
        try:
            return await result
        finally:
            notes.add(end or 0)

    def until_ended(result: Any) -> Any:
        """Of a `Later`, whose class is not imported here: that would be in every process, Ray's own included."""
        noted = type(result)(result.cancel)

        def on_end(outcome: Any) -> None:
            notes.add(end or 0)
            noted.end(outcome)

        result.then(on_end)
        return noted

    @functools.wraps(function)
    def noted(*arguments: Any, **options: Any) -> Any:
        if hop.api and _api_of(arguments[hop.argument]) != hop.api:
            return function(*arguments, **options)
        if begin is not None:
            notes.add(begin)
        result = function(*arguments, **options)
        if end is None:
            return result
        if hasattr(result, "then"):
            return until_ended(result)
        if inspect.isawaitable(result):
            return until_done(result)
        notes.add(end)
        return result

    return noted


def _api_of(argument: Any) -> str:
    if isinstance(argument, str):
        return argument
    with suppress(AttributeError):
        return str(argument.api.name)
    return type(argument).__name__
