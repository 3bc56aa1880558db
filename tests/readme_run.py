"""`python -m tests.readme_run`: the snippets of the README and then of the guide run as they stand, as a user's would.

They run in the order of the pages, and the guide's pages in the order of the README's links to them: in a fresh
environment, from the wheel of this tree, in a directory away from it, with a home directory and a Ray of
their own. Blocks are taken from the pages: `sh` line by line, each `python` block as a program of its own (one with
tests by pytest; one that ends with Ctrl-C gets it as soon as it has printed something); a `yaml` block is a cluster's
specification. Blocks without a language are no snippets.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from tests import fresh_environment
from tests.tidy import ROOT

_SNIPPET_S_MAX = 300
_END_S_MAX = 60  # a JVM of Spark lingers up to 20 s after its driver
_MARK = "RAYKA_README_RUN"
_STARTS_A_RAY = "rayka start"
# What uv has downloaded already is taken as it is. Asked again, an index that sends no validators has the Spark package
# built anew from its source, for a minute.
_PIP = """#!/bin/sh
{uv} pip "$@" --offline 2>/dev/null || exec {uv} pip "$@"
"""


class SnippetFailed(Exception):
    """What a snippet did instead of what the page promises."""


class Block(NamedTuple):
    """A block of code, and the section of the page that it stands in."""

    heading: str
    language: str
    text: str


class Place(NamedTuple):
    """Where snippets run."""

    directory: Path
    environment: dict[str, str]


def blocks(page: str) -> list[Block]:
    """All blocks with a language, in their order."""
    found, heading = [], ""
    for match in re.finditer(r"^## ([^\n]*)$|^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        heading = match[1] or heading
        if match[2]:
            found.append(Block(heading, match[2], match[3]))
    return found


def pages() -> list[Path]:
    """The README, and the pages of the guide in the order in which it links to them."""
    readme = ROOT / "README.md"
    links = re.findall(r"\((rayka/docs/guide/[\w-]+\.md)", readme.read_text())
    return [readme, *(ROOT / each for each in dict.fromkeys(links))]


def all_blocks() -> list[Block]:
    """The blocks of all pages, in their order."""
    return [block for page in pages() for block in blocks(page.read_text())]


def main() -> int:
    """0 when every snippet did what it says and nothing is left running."""
    # A shell that starts this in the background has SIGINT ignored, and snippets would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="rk-", ignore_cleanup_errors=True) as scratch:
        place = _prepare(Path(scratch))
        try:
            for block in all_blocks():
                started = time.monotonic()
                print(f"\n=== {block.heading}: {block.language}\n{block.text}---", flush=True)
                RUNNERS[block.language](block, place)
                print(f"--- {time.monotonic() - started:.1f} s", flush=True)
            _expect_the_end()
        except SnippetFailed as error:
            print(f"\nFAILED: {error}", flush=True)
            return 1
        finally:
            _end_what_is_left()
    return 0


def _prepare(scratch: Path) -> Place:
    """An empty environment, whose `pip` is uv's and knows the wheel, and an empty project directory beside it."""
    wheel = fresh_environment.build_wheel(scratch)
    exact = fresh_environment.PYPROJECT["tool"]["uv"]["constraint-dependencies"]
    environment = fresh_environment.make(scratch / "environment", [f"rayka @ {wheel.as_uri()}", *exact])
    pip = scratch / "environment/bin/pip"
    pip.write_text(_PIP.format(uv=fresh_environment.uv()))
    pip.chmod(0o755)
    for each in ("home", "project"):
        (scratch / each).mkdir()
    environment |= {
        _MARK: str(os.getpid()),
        "HOME": str(scratch / "home"),
        # Where Spark's JVM leaves a library; and it computes 40 % less than one that compiles for a long run.
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYTHONUNBUFFERED": "1",
        "RAY_ADDRESS": "local",  # no Ray that happens to run on this machine
        "RAY_TMPDIR": str(scratch),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(scratch),
        "UV_CACHE_DIR": fresh_environment.cache_directory(),  # else it would be in that home
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile all that it imports
    place = Place(scratch / "project", environment)
    _run(["pip", "install", "--quiet", *fresh_environment.tools("pytest")], place)
    return place


# ---- Snippets ----


def _run_shell(block: Block, place: Place) -> None:
    for line in block.text.splitlines():
        command = line.partition(" #")[0].strip()
        if command:
            print(f"$ {command}", flush=True)
            _run(["bash", "-c", command], place)
        if command.startswith(_STARTS_A_RAY):
            place.environment.pop("RAY_ADDRESS", None)  # the snippets' own Ray is found from here on


def _run_python(block: Block, place: Place) -> None:
    program = place.directory / "snippet.py"
    program.write_text(block.text)
    if "def test_" in block.text:
        _run(["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", program.name], place)
    elif "KeyboardInterrupt" in block.text:
        _interrupt_when_it_has_printed(["python", program.name], place)
    else:
        _run(["python", program.name], place)


def _load_specification(block: Block, place: Place) -> None:
    (place.directory / "shown.yaml").write_text(block.text)
    _run(
        [
            "python",
            "-c",
            "from rayka.config.cluster_config import ClusterSpec; ClusterSpec.load('shown.yaml')",
        ],
        place,
    )


RUNNERS: dict[str, Callable[[Block, Place], None]] = {
    "python": _run_python,
    "sh": _run_shell,
    "yaml": _load_specification,
}


# ---- Processes ----


def _run(command: list[str], place: Place) -> None:
    process, output = _started(command, place)
    _judge(command, process, output)


def _interrupt_when_it_has_printed(command: list[str], place: Place) -> None:
    process, output = _started(command, place)
    deadline_s = time.monotonic() + _SNIPPET_S_MAX
    while not output.stat().st_size and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _judge(command, process, output)


def _started(command: list[str], place: Place) -> tuple[subprocess.Popen[bytes], Path]:
    output = place.directory.parent / "output"
    program = shutil.which(command[0], path=place.environment["PATH"])
    with output.open("wb") as file:
        process = subprocess.Popen(
            [program or command[0], *command[1:]],
            cwd=place.directory,
            env=place.environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return process, output


def _judge(command: list[str], process: subprocess.Popen[bytes], output: Path) -> None:
    """Waits for the end of the process, and prints what it said. Raises SnippetFailed."""
    try:
        code = process.wait(_SNIPPET_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    said = output.read_text(errors="replace")
    print(said, end="", flush=True)
    if code or "Traceback (most recent call last)" in said:
        raise SnippetFailed(f"{' '.join(command)} ended with {code}")


def _left() -> list[psutil.Process]:
    """Living processes that the snippets have started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == str(os.getpid()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue  # ended meanwhile, or another user's
    return found


def _expect_the_end() -> None:
    psutil.wait_procs(_left(), timeout=_END_S_MAX)
    left = [" ".join(process.cmdline())[:200] for process in _left()]
    if left:
        raise SnippetFailed(f"the last snippet leaves running: {left}")


def _end_what_is_left() -> None:
    for process in _left():
        process.kill()
    psutil.wait_procs(_left(), timeout=_END_S_MAX)


if __name__ == "__main__":
    raise SystemExit(main())
