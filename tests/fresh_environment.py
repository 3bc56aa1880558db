"""An environment as a user makes it: the wheel of this tree and what it asks for, away from the tree.

For programs that CI runs (`tests.lower_bounds`, `tests.readme_run`). Versions that nothing else decides are those
of the date in `pyproject.toml`, as in `uv run`.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.tidy import ROOT

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
_BUILT_FROM_SOURCE = ("pyspark",)


def requirements(*extras: str) -> list[Requirement]:
    """What the library asks for, and what these extras do."""
    optional = PYPROJECT["project"]["optional-dependencies"]
    texts = [*PYPROJECT["project"]["dependencies"], *(each for extra in extras for each in optional[extra])]
    return [Requirement(each) for each in texts]


def tools(*names: str) -> list[str]:
    """Tools for the tests, in the versions of development."""
    return [each for each in PYPROJECT["dependency-groups"]["dev"] if Requirement(each).name in names]


def build_wheel(directory: Path) -> Path:
    """The wheel of this tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = directory.glob("*.whl")
    return wheel


def make(directory: Path, constraints: Iterable[str]) -> dict[str, str]:
    """Makes an empty environment at `directory`, with `constraints` on what will be installed.

    Returns the environment variables that its programs run under.
    """
    subprocess.run([uv(), "venv", "--quiet", "--python", sys.executable, str(directory)], check=True)
    listed = directory / "constraints.txt"
    listed.write_text("".join(f"{each}\n" for each in constraints))
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "UV_CONSTRAINT")}
    return {
        **kept,
        "PATH": f"{directory / 'bin'}{os.pathsep}{kept['PATH']}",
        "VIRTUAL_ENV": str(directory),
        "UV_CONSTRAINT": str(listed),
        "UV_EXCLUDE_NEWER": PYPROJECT["tool"]["uv"]["exclude-newer"],
    }


def install(wanted: Iterable[str], directory: Path, environment: dict[str, str]) -> None:
    """Installs what is wanted into the environment that these variables name.

    What uv has downloaded already is taken as it is. Asked again, an index that sends no validators has the Spark
    package built anew from its source, for half a minute. So where something else has to be downloaded, Spark is there
    first.
    """
    command = [uv(), "pip", "install", *wanted]
    offline = subprocess.run(
        [*command, "--offline"], cwd=directory, env=environment, stderr=subprocess.DEVNULL, check=False
    )
    if offline.returncode:
        subprocess.run(
            [uv(), "pip", "install", *_BUILT_FROM_SOURCE, "--no-deps", "--offline"],
            cwd=directory,
            env=environment,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        subprocess.run(command, cwd=directory, env=environment, check=True)


def uv() -> str:
    """The uv that runs this program, or the one on the PATH."""
    found = os.environ.get("UV") or shutil.which("uv")
    if found is None:
        raise SystemExit("uv is missing: pip install uv")
    return found


def cache_directory() -> str:
    """Where uv keeps what it has downloaded."""
    return subprocess.run([uv(), "cache", "dir"], check=True, capture_output=True, text=True).stdout.strip()
