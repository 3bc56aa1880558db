"""`python -m tests.mutation shard --directory DIR`, with mutmut 3.8.1: what the tests of a folder do not notice.

Copies the tree into `DIR/shard`, has mutmut break each function of `rayka/shard` there in turn, and runs those tests of
`tests/shard` that call it. The tree itself is never changed. Started again, it goes on where it was stopped: mutants
that ran do not run again, unless their function has changed since, they are named (`rayka.shard.runtime.*`), or
`--again` asks for all that no test has noticed. `--survivors` prints those, as differences.

mutmut leaves alone what stands outside of functions, and functions with another decorator than `staticmethod` and
`classmethod`: properties, and context managers. `rayka/log/local_disk.py` is left out: mutmut's copies of a
method `list` cannot name that type.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import IO

from tests.tidy import ROOT

FOLDERS = ("shard", "partition", "raft", "controller", "log", "cleaner", "coordinator")
_SLOW = (
    "tests/raft/test_faults.py",
)  # long runs by seed, which most functions take part in: only with `--slow`
# The machine may have other work, so the clock ends only what waits and computes nothing. What computes for ever is
# ended by the time that one test has the processor (`_CONFTEST`).
_SETTINGS = """
[tool.mutmut]
source_paths = ["rayka"]
only_mutate = ["rayka/{folder}/*.py"]
do_not_mutate = ["rayka/log/local_disk.py"]
pytest_add_cli_args_test_selection = ["tests/{folder}"]
pytest_add_cli_args = ["-n0", "-pno:cacheprovider", "--durations=0", "-qq"{ignored}]
also_copy = ["README.md", "benchmarks", "examples", "cluster.yaml"]
timeout_multiplier = 24.0
timeout_constant = 5.0
use_git_change_detection = false
"""
# Instead of that of the tree, which proves that a run leaves nothing behind: a broken function may. The same examples
# for each mutant, and none is refused because the machine is slow.
_CONFTEST = """
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

EXAMPLES_MAX = {examples_max}
TEST_CPU_S = 20
CALM = dict(deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck))
hypothesis.settings.register_profile("mutation", **CALM)
hypothesis.settings.load_profile("mutation")


def bounded(settings):
    return hypothesis.settings(settings, max_examples=min(settings.max_examples, EXAMPLES_MAX), **CALM)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        test = getattr(item, "obj", None)
        if hasattr(test, "hypothesis"):
            own = getattr(test, "_hypothesis_internal_use_settings", None)
            test._hypothesis_internal_use_settings = bounded(own or hypothesis.settings())
        elif isinstance(getattr(item.cls, "settings", None), hypothesis.settings):
            item.cls.settings = bounded(item.cls.settings)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if os.environ.get("MUTANT_UNDER_TEST", "").startswith("rayka."):
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGXCPU))
        signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
"""
_STATUS = {
    0: "survived",
    1: "killed",
    3: "killed",
    33: "no tests",
    5: "no tests",
    None: "not run",
    -11: "killed",
}


def main() -> int:
    """The exit code of mutmut; the score is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", choices=FOLDERS)
    parser.add_argument("names", nargs="*", help="mutants to run again, `*` allowed")
    parser.add_argument(
        "--directory", type=Path, required=True, help="where the copy is and results are kept"
    )
    parser.add_argument("--again", action="store_true", help="run once more what no test has noticed")
    parser.add_argument("--examples", type=int, default=10, help="of a hypothesis test, at most")
    parser.add_argument("--slow", action="store_true", help=f"run {', '.join(_SLOW)} as well")
    parser.add_argument(
        "--sample", type=int, help="run so many mutants only; a larger sample holds a smaller one"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sample: another one is another lot")
    parser.add_argument("--children", type=int, default=1, help="mutants that run at a time")
    parser.add_argument("--survivors", action="store_true", help="print what survived and run nothing")
    wanted = parser.parse_args()
    copy = wanted.directory / wanted.folder
    if wanted.survivors:
        _print_survivors(copy)
        return 0
    _copy_tree(copy, wanted.folder, is_slow=wanted.slow)
    (copy / "tests/conftest.py").write_text(_CONFTEST.format(examples_max=wanted.examples))
    return _run(copy, wanted)


def _run(copy: Path, wanted: argparse.Namespace) -> int:
    log = copy / "mutmut.log"
    print(f"what mutmut says goes to {log}", flush=True)
    with log.open("w") as says:
        sample = None
        if wanted.sample:
            _mutmut(
                copy, "run", "none", stdout=says
            )  # makes the mutants, and ends because none has that name
            sample = sorted(_results(copy))
            random.Random(wanted.seed).shuffle(sample)
            del sample[wanted.sample :]
        names = [*wanted.names, *(_unnoticed(copy) if wanted.again else ())]
        if wanted.again:
            _forget_durations(copy)
        if sample:
            names += [
                name for name, status in _results(copy).items() if name in sample and status == "not run"
            ]
        code = _mutmut(copy, "run", "--max-children", str(wanted.children), *names, stdout=says).returncode
    print(_score(copy))
    if sample:
        print("of the sample:", _score(copy, sample))
    return code


def _copy_tree(copy: Path, folder: str, *, is_slow: bool) -> None:
    """Makes the copy, or brings it up to date: what became of functions that are as they were is kept."""
    for tests in (copy / "tests", copy / "mutants/tests"):
        shutil.rmtree(tests, ignore_errors=True)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        source, target = ROOT / name, copy / name
        if source.exists() and not (target.exists() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            if target.suffix != ".py":  # mutmut copies it only where it is missing
                (copy / "mutants" / name).unlink(missing_ok=True)
    for path in (copy / "rayka").rglob("*.py"):
        if not (ROOT / path.relative_to(copy)).exists():
            path.unlink()
    ignored = "" if is_slow else "".join(f', "--ignore={each}"' for each in _SLOW)
    settings = (ROOT / "pyproject.toml").read_text() + _SETTINGS.format(folder=folder, ignored=ignored)
    (copy / "pyproject.toml").write_text(settings)


def _mutmut(copy: Path, *arguments: str, stdout: IO[str] | None = None) -> subprocess.CompletedProcess[str]:
    scratch = copy / "scratch"  # what a broken function leaves behind
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=copy, env=environment, stdout=stdout, stderr=stdout, check=False)


def _results(copy: Path) -> dict[str, str]:
    """What became of each mutant."""
    found = {}
    for path in sorted((copy / "mutants/rayka").rglob("*.py.meta")):
        if (copy / path.relative_to(copy / "mutants").with_suffix("")).exists():
            for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
                found[name] = _STATUS.get(code, "timeout")
    return found


def _unnoticed(copy: Path) -> list[str]:
    return [name for name, status in _results(copy).items() if status in ("survived", "no tests")]


def _forget_durations(copy: Path) -> None:
    """mutmut finds out which functions a test calls when it knows no duration of it: a test that was changed may call
    others than before.
    """
    path = copy / "mutants/mutmut-stats.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"duration_by_test": {}}))


def _score(copy: Path, names: Collection[str] = ()) -> str:
    results = _results(copy)
    counts = Counter(results[each] for each in names or results)
    ran = sum(counts.values()) - counts["not run"]
    noticed = counts["killed"] + counts["timeout"]
    share = 100 * noticed / ran if ran else 0
    return f"rayka/{copy.name}: {noticed} of {ran} noticed ({share:.1f} %): {dict(counts)}"


def _print_survivors(copy: Path) -> None:
    for name in _unnoticed(copy):
        _mutmut(copy, "show", name)
    print(_score(copy))


if __name__ == "__main__":
    sys.exit(main())
