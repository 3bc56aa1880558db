"""The rules of the house, as ratchets: the numbers below may fall, and rise only with a reason.

Every checker is also shown an offender, so that none can pass by finding nothing.
"""

import ast
import importlib.metadata
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import rayka
from rayka.cli import main
from tests import tidy
from tests.tidy import ROOT, Source

Checker = Callable[[Source], list[str]]

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 12
FILE_LINES_MAX = 600
METHODS_MAX = 30
# Lists by nature: one method for each thing that a disk does, and what one state belongs to.
METHODS_EXCEPTIONS = {
    "rayka/log/local_disk.py": "the disk port",
    "rayka/client/consumer/consumer.py": "the public client: 29 of them are Kafka's methods and Python's",
    "rayka/client/consumer/delivery.py": "positions, askings and batches of a consumer, which move together",
    "rayka/testing/memory_disk.py": "the disk port, and how it fails",
}

# How fine the house is cut, and how its docstrings read (`tidy.figures`). A number may fall, and is lowered then.
HOUSE_MAX = {
    "modules": 354,
    "modules below 80 lines": 23,
    "class names that stand twice": 4,
    "lines of imports in a thousand": 106,
    "private functions with one caller in a hundred": 57,
    "docstrings that begin without a subject": 80,
    "docstrings with 'what is' as a noun": 49,
    "docstrings glued by 'meanwhile' or 'by then'": 42,
    "docstrings with 'is to be'": 1,
    "docstrings with 'nobody' or 'who'": 1,
    "docstrings that say 'See the module'": 0,
}

CORES = tuple(
    f"rayka/{name}/"
    for name in ("log", "raft", "shard", "partition", "controller", "coordinator", "metadata", "protocol")
)
NODES_AND_CLIENTS = ("rayka/node/", "rayka/client/")
# What decides which bytes are on a disk, which replica leads, and that no record is sent or handed over twice.
DURABLE_STATE = (*CORES, "rayka/cleaner/", "rayka/node/", "rayka/client/producer/", "rayka/client/consumer/")
# What in the cores may wait, and for what; the disk port is a shell and not a core.
ASYNC_EXCEPTIONS = {
    "rayka/log/local_disk.py": "the disk port: its sync runs in a thread",
    "rayka/log/disk_threads.py": "the disk port: its threads",
    "rayka/log/job_process.py": "the disk port: its jobs run in other processes",
    "rayka/log/checkpoint_files.py": "the disk port's sync",
    "rayka/log/log_directory.py": "the disk port's sync",
    "rayka/log/shutdown_files.py": "the disk port's sync",
    "rayka/raft/snapshot.py": "the disk port's sync",
    "rayka/protocol/active_controller.py": "nodes and clients share it, and neither imports the other",
}

# Order of tasks must not depend on addresses, and nothing may escape to a thread or to the world's clock: the same
# nodes and clients shall run on a virtual clock, reproducibly from a seed.
BANNED = (
    "asyncio.wait", "asyncio.as_completed", "asyncio.TaskGroup", "asyncio.to_thread", ".run_in_executor",
    "uuid.uuid1", "uuid.uuid4", "time.time", "time.time_ns", "time.sleep", "datetime.datetime.now",
    "random.", "secrets.", "os.urandom",
)  # fmt: skip
BANNED_EXCEPTIONS = {
    "rayka/log/job_process.py": "the disk port: its jobs run in other processes",
    "rayka/client/io_thread.py": "the clients' shell: their thread, and the wall clock of their records",
}

FILE_CALLS = (
    "open", "os.open", "os.fdopen", "io.open", "mmap.mmap",
    ".read_text", ".read_bytes", ".write_text", ".write_bytes",
)  # fmt: skip
# Shells (actors, Spark, the command line) may read what Ray, Java and the demo's data are made of; no log file.
SHELLS = ("rayka/actors/", "rayka/spark/", "rayka/cli/")
FILE_EXCEPTIONS = {
    "rayka/log/local_disk.py": "the disk port, its open files and slices of them",
    "rayka/log/mapped_reader.py": "the disk port's other end: maps what a file range names",
    "rayka/config/cluster_config.py": "reads the cluster specification",
    "rayka/sim/results.py": "what many runs came to",
}

OBSERVERS = ("rayka/sim/", "rayka/testing/")  # they see the other packages as the code that runs there does
OBSERVERS_EXCEPTIONS = {
    "rayka/sim/loop.py": "an event loop names itself to asyncio, which has no public call for that",
}

# Written in pieces, or this file would be an offender.
FORBIDDEN = {
    "a package registry's host": "|".join(
        re.escape(host)
        for host in ("py" "pi.org", "python" "hosted.org", "maven" ".org", "npm" "js.org", "crates" ".io")
    ),
    "a path of one machine": re.escape("/" "work/") + "|" + re.escape("/" "root/") + "|" + r"/ho" r"me/\w",
    "unfinished work": r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|NotImplemented" "Error",
}  # fmt: skip


def expect_no_findings(found: list[str]) -> None:
    assert not found, "\n".join(["", *found])


# ---- Sizes ----


def test_no_function_is_longer_than_the_end() -> None:
    expect_no_findings(
        [each for source in tidy.python_files() for each in tidy.long_functions(source, FUNCTION_LINES_MAX)]
    )


def test_no_file_of_the_package_is_longer_than_the_end() -> None:
    sources = tidy.python_files("rayka/", "benchmarks/", "examples/")
    expect_no_findings([each for source in sources for each in tidy.long_file(source, FILE_LINES_MAX)])


def test_functions_of_the_package_are_short_by_the_median() -> None:
    lengths = [lines for source in tidy.python_files("rayka/") for _, lines in tidy.functions(source)]
    assert statistics.median(lengths) <= FUNCTION_LINES_MEDIAN_MAX


def test_no_class_has_more_methods_than_the_end() -> None:
    sources = [each for each in tidy.python_files("rayka/") if each.name not in METHODS_EXCEPTIONS]
    expect_no_findings([each for source in sources for each in tidy.big_classes(source, METHODS_MAX)])


def test_the_house_gets_no_finer_and_no_darker() -> None:
    figures = tidy.figures(tidy.python_files("rayka/"))
    assert figures.keys() == HOUSE_MAX.keys()
    assert {name: count for name, count in figures.items() if count > HOUSE_MAX[name]} == {}


# ---- What may be used where ----


def test_each_module_of_the_package_has_a_name_of_its_own() -> None:
    expect_no_findings(tidy.repeated_module_names(tidy.python_files("rayka/")))


def test_the_simulator_and_the_testing_cluster_use_no_private_name_of_another_module() -> None:
    sources = [each for each in tidy.python_files(*OBSERVERS) if each.name not in OBSERVERS_EXCEPTIONS]
    expect_no_findings([each for source in sources for each in tidy.private_reaches(source)])


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    options = ["--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [*command, *options], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_dependencies_point_downward_only() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    run = subprocess.run(
        [*command, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_an_upward_import_is_found(tmp_path: Path) -> None:
    """A skeleton of the package under the real contracts, whose lowest module imports its highest."""
    for package in sorted(
        path.name for path in (ROOT / "rayka").iterdir() if (path / "__init__.py").exists()
    ):
        (tmp_path / "rayka" / package).mkdir(parents=True)
        (tmp_path / "rayka" / package / "__init__.py").touch()
    for module in (
        "__init__",
        "clock",
        "cluster",
        "config",
        "config_file",
        "config_model",
        "config_topics",
        "config_brokers",
        "config_clients",
        "config_scaling",
        "descriptors",
        "error_codes",
        "errors",
        "forks",
        "options",
        "ports",
        "client/bootstrap",
    ):
        (tmp_path / "rayka" / f"{module}.py").touch()
    (tmp_path / "rayka/client/bootstrap.py").write_text("import rayka.cluster\n")
    (tmp_path / "rayka/ids.py").write_text("import rayka.cli\n")
    (tmp_path / "rayka/node/__init__.py").write_text("import ray\nimport pydantic\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    run = lint_imports(tmp_path)
    assert run.returncode == 1
    assert "Contracts: 0 kept, 3 broken." in run.stdout


def test_nodes_clients_and_cores_use_no_threads_clocks_or_chance() -> None:
    files = tidy.python_files(*CORES, *NODES_AND_CLIENTS)
    sources = [each for each in files if each.name not in BANNED_EXCEPTIONS]
    expect_no_findings([each for source in sources for each in tidy.banned_uses(source, BANNED)])


def test_cores_are_synchronous() -> None:
    sources = [each for each in tidy.python_files(*CORES) if each.name not in ASYNC_EXCEPTIONS]
    expect_no_findings([each for source in sources for each in tidy.coroutines(source)])


def test_cores_walk_no_set() -> None:
    expect_no_findings([each for source in tidy.python_files(*CORES) for each in tidy.set_iterations(source)])


def test_clients_raise_no_bare_value_error() -> None:
    """`InvalidArgument` is one, so a program that catches ValueError goes on doing so."""
    found = [
        each.at(node, "raises ValueError")
        for each in tidy.python_files("rayka/client/", "rayka/aio/", "rayka/worker_pool/")
        if each.name != "rayka/client/serializers.py"  # a serializer's is turned into a SerializationError
        for node in ast.walk(each.tree)
        if isinstance(node, ast.Raise) and node.exc is not None and "ValueError(" in ast.unparse(node.exc)
    ]
    assert found == []


def test_an_error_that_reaches_users_shows_no_repr_of_a_batch() -> None:
    """Its bits are for logs; the error says which batch it is, and what is wrong."""
    shown = [
        each.at(node, ast.unparse(node.exc))
        for each in tidy.python_files(
            "rayka/protocol/", "rayka/client/consumer/", "rayka/partition/validation.py"
        )
        for node in ast.walk(each.tree)
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and "InvariantBroken(" not in ast.unparse(node.exc)
        if re.search(r"\{(batch|self\.batch)!r\}", ast.unparse(node.exc))
    ]
    assert shown == []


def test_what_guards_durable_state_is_raised_and_not_asserted() -> None:
    sources = tidy.python_files(*DURABLE_STATE)
    expect_no_findings([each for source in sources for each in tidy.assertions(source)])


def test_the_checks_of_a_voter_are_there_without_assertions() -> None:
    """Under `-O`; pytest itself turns the asserts of the tests into something else, and warns that it cannot ours."""
    command = [
        sys.executable,
        "-O",
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
    ]
    command += ["tests/raft/test_transitions.py", "tests/log/test_log_start.py"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_below_the_shells_only_the_disk_opens_files() -> None:
    files = [each for each in tidy.python_files("rayka/") if not each.name.startswith(SHELLS)]
    sources = [each for each in files if each.name not in FILE_EXCEPTIONS]
    expect_no_findings([each for source in sources for each in tidy.banned_uses(source, FILE_CALLS)])


@pytest.mark.parametrize(
    ("exceptions", "checker"),
    [
        (ASYNC_EXCEPTIONS, tidy.coroutines),
        (BANNED_EXCEPTIONS, lambda source: tidy.banned_uses(source, BANNED)),
        (FILE_EXCEPTIONS, lambda source: tidy.banned_uses(source, FILE_CALLS)),
        (METHODS_EXCEPTIONS, lambda source: tidy.big_classes(source, METHODS_MAX)),
        (OBSERVERS_EXCEPTIONS, tidy.private_reaches),
    ],
    ids=["async", "banned", "files", "methods", "observers"],
)
def test_every_exception_is_still_needed(exceptions: dict[str, str], checker: Checker) -> None:
    sources = {each.name: each for each in tidy.python_files("rayka/")}
    assert [name for name in exceptions if not checker(sources[name])] == []


# ---- What people read ----


def test_every_module_says_what_it_owns() -> None:
    expect_no_findings(
        [
            each
            for source in tidy.python_files("rayka/", "benchmarks/")
            for each in tidy.without_docstring(source)
        ]
    )


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in rayka.__all__ if not getattr(rayka, name).__doc__] == []


def test_no_tracked_file_names_a_machine_or_a_registry_or_unfinished_work() -> None:
    expect_no_findings([each for source in tidy.tracked() for each in tidy.forbidden_text(source, FORBIDDEN)])


def test_links_between_pages_lead_somewhere() -> None:
    pages = [each for each in tidy.tracked() if each.name.endswith(".md")]
    expect_no_findings([each for page in pages for each in tidy.broken_links(page)])


def direct_dependencies() -> set[str]:
    requirements = importlib.metadata.requires("rayka") or []
    return {re.split(r"[^A-Za-z0-9-]", requirement)[0].lower() for requirement in requirements}


def decided_dependencies() -> set[str]:
    pages = [each for each in tidy.tracked() if each.name.startswith("rayka/docs/decisions/")]
    lines = [line for page in pages for line in page.text.split("\n") if line.startswith("Dependencies: ")]
    return {name.strip(" .`") for line in lines for name in line.removeprefix("Dependencies: ").split(",")}


def test_each_direct_dependency_has_a_decision_record() -> None:
    assert direct_dependencies() - decided_dependencies() == set()


def test_each_dependency_of_a_decision_record_is_still_one() -> None:
    assert decided_dependencies() - direct_dependencies() - development_dependencies() == set()


def development_dependencies() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    dev = text[text.index("dev = [") :].partition("\n]")[0]
    return set(re.findall(r'"([a-z-]+)', dev))


# ---- The command line ----


def documented_commands() -> list[str]:
    """Every `rayka …` command in the code blocks of the README and the guide."""
    text = "".join(
        each.read_text() for each in (ROOT / "README.md", *(ROOT / "rayka/docs/guide").glob("*.md"))
    )
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    lines = [
        line.removeprefix("$ ").partition("#")[0].strip() for block in blocks for line in block.split("\n")
    ]
    return [line.partition("rayka ")[2] for line in lines if re.match(r"(.*uv run )?rayka ", line)]


def unknown_words(command: str, root: click.Command) -> list[str]:
    """Words of a command line that name no command and no option of the program."""
    words, current, unknown = [word.strip("[]") for word in command.split()], root, []
    options = {option for parameter in root.params for option in parameter.opts}
    for word in words:
        if isinstance(current, click.Group):
            following = current.get_command(click.Context(current), word)
            if following is None and not word.startswith("-"):
                return [word]
            current = following or current
            options |= {option for parameter in current.params for option in parameter.opts}
        if word.startswith("-") and word.partition("=")[0] not in options | {"--help"}:
            unknown.append(word)
    return unknown


def test_the_commands_of_the_readme_and_the_guide_exist() -> None:
    commands = documented_commands()
    assert len(commands) > 20
    assert {each: unknown for each in commands if (unknown := unknown_words(each, main.rayka))} == {}


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running the code."""
    program = f"{code}\nimport sys\nprint(*sorted(name.partition('.')[0] for name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split("\n")[-2].split())


def test_importing_rayka_loads_nothing_heavy() -> None:
    assert modules_after("import rayka") & {"ray", "pyarrow", "numpy", "pyspark", "pydantic"} == set()


def test_importing_rayka_asks_for_no_version() -> None:
    assert "rayka" in modules_after("import rayka\nassert '__version__' not in vars(rayka)")


def test_the_clients_do_not_load_ray() -> None:
    assert "ray" not in modules_after("import rayka; rayka.Producer, rayka.Consumer, rayka.Admin")


def test_help_does_not_load_ray() -> None:
    code = "from rayka.cli.main import run\nassert run(['--help']) == 0"
    assert modules_after(code) & {"ray", "pyspark", "pandas"} == set()


# ---- The checkers find what they look for ----

OFFENDERS: list[tuple[Checker, str, str]] = [
    (lambda source: tidy.long_functions(source, 3), "def f():\n    a = 1\n    b = 2\n    return a + b", "4 lines"),
    (lambda source: tidy.long_file(source, 2), "a = 1\nb = 2\nc = 3", "3 lines"),
    (lambda source: tidy.big_classes(source, 1), "class A:\n    def f(self): ...\n    def g(self): ...", "2 methods"),
    (tidy.private_reaches, "from rayka.log.log import _opened", "_opened"),
    (tidy.private_reaches, "def f(log): return log._segments", "log._segments"),
    (tidy.private_reaches, "class A:\n    def f(self): return self.log._segments.count", "self.log._segments"),
    (lambda source: tidy.banned_uses(source, BANNED), "import asyncio\nasyncio.wait([])", "asyncio.wait"),
    (lambda source: tidy.banned_uses(source, BANNED), "from asyncio import wait as w\nw([])", "asyncio.wait"),
    (lambda source: tidy.banned_uses(source, BANNED), "loop().run_in_executor(f)", "run_in_executor"),
    (lambda source: tidy.banned_uses(source, BANNED), "from random import choice\nchoice(a)", "random.choice"),
    (lambda source: tidy.banned_uses(source, BANNED), "import time as t\nnow = t.time", "time.time"),
    (lambda source: tidy.banned_uses(source, FILE_CALLS), "open('a')", "open"),
    (lambda source: tidy.banned_uses(source, FILE_CALLS), "import mmap\nmmap.mmap(1, 2)", "mmap.mmap"),
    (lambda source: tidy.banned_uses(source, FILE_CALLS), "Path(a).write_text(b)", "write_text"),
    (tidy.coroutines, "class A:\n    async def f(self): ...", "async def f"),
    (tidy.set_iterations, "for a in {1, 2}:\n    print(a)", "walks the set"),
    (tidy.set_iterations, "class A:\n    ids: set[int]\n    def f(self): return [a for a in self.ids]", "self.ids"),
    (tidy.set_iterations, "def f(ids: frozenset[int]): return tuple(ids)", "ids"),
    (tidy.set_iterations, "known = set()\nfor a in known | other: print(a)", "known | other"),
    (tidy.assertions, "assert offset >= end", "assert"),
    (tidy.assertions, "assert leader is not None, 'nobody leads'", "assert"),
    (tidy.without_docstring, "a = 1", "docstring"),
    (lambda source: tidy.forbidden_text(source, FORBIDDEN), "# TO" "DO: later", "unfinished"),
    (lambda source: tidy.forbidden_text(source, FORBIDDEN), "url = 'https://py" "pi.org/simple'", "registry"),
    (lambda source: tidy.forbidden_text(source, FORBIDDEN), "path = '/ho" "me/somebody/rayka'", "machine"),
    (tidy.broken_links, "[gone](no/such/page.md)", "no/such/page.md"),
    (tidy.missing_names, "[`Source.gone`](tests/tidy.py)", "Source.gone"),
]  # fmt: skip


@pytest.mark.parametrize(("checker", "text", "expected"), OFFENDERS)
def test_a_planted_offender_is_found(checker: Checker, text: str, expected: str) -> None:
    found = checker(Source("planted.py", text))
    assert len(found) == 1
    assert expected in found[0]


def test_the_figures_of_a_small_house_are_counted() -> None:
    texts = {
        "a.py": '"""What is there."""\n\nimport ray\n\n\nclass Log:\n    """See the module."""\n' + "\n" * 80,
        "b.py": '"""Logs."""\n\n\nclass Log:\n    pass\n\n\ndef _once():\n    pass\n\n\n_once()\n',
    }
    figures = tidy.figures([Source(name, text) for name, text in texts.items()])
    assert {name: count for name, count in figures.items() if count} == {
        "modules": 2,
        "modules below 80 lines": 1,
        "class names that stand twice": 1,
        "lines of imports in a thousand": 1000 // 7,
        "private functions with one caller in a hundred": 100,
        "docstrings that begin without a subject": 1,
        "docstrings that say 'See the module'": 1,
    }


INNOCENTS: list[tuple[Checker, str]] = [
    (lambda source: tidy.banned_uses(source, BANNED), "import asyncio\nasyncio.wait_for(a, 1)"),
    (lambda source: tidy.banned_uses(source, BANNED), "from random import Random\nRandom(7).random()"),
    (lambda source: tidy.banned_uses(source, BANNED), "def f(random: Random): return random.random()"),
    (lambda source: tidy.banned_uses(source, FILE_CALLS), "log.open(path)"),
    (lambda source: tidy.big_classes(source, 1), "class A:\n    a: int\n    def f(self): ...\ndef g(): ..."),
    (tidy.private_reaches, "class A:\n    def f(self): return self._f() or super()._f() or self.__class__"),
    (
        tidy.private_reaches,
        "class A:\n    def __init__(self): self._a = 1\n    def f(self, other: A): return other._a",
    ),
    (tidy.assertions, "assert isinstance(role, Leader)\nassert voters is not None"),
    (tidy.set_iterations, "ids: set[int]\nfor a in sorted(ids): print(a)\nlargest = max(a for a in ids)"),
    (tidy.set_iterations, "known: dict[str, set[int]]\nfor a in known: print(a)"),
]


@pytest.mark.parametrize(("checker", "text"), INNOCENTS)
def test_what_is_allowed_is_not_found(checker: Checker, text: str) -> None:
    assert checker(Source("innocent.py", text)) == []


def test_a_planted_module_with_the_name_of_another_is_found() -> None:
    names = ("rayka/__init__.py", "rayka/log/__init__.py", "rayka/log/log.py", "rayka/node/log.py")
    found = tidy.repeated_module_names([Source(name, "") for name in names])
    assert found == ["rayka/node/log.py: has the name of rayka/log/log.py"]


def test_an_unknown_command_of_a_readme_is_found() -> None:
    topic = click.Group("topic", commands=[click.Command("create", params=[click.Option(["--partitions"])])])
    root = click.Group("rayka", commands=[topic])
    assert unknown_words("topic create flights --partitions 6", root) == []
    assert unknown_words("topic make flights", root) == ["make"]
    assert unknown_words("topic create flights --parts 6", root) == ["--parts"]


def test_a_worker_process_runs_all_tests_of_a_group(request: pytest.FixtureRequest) -> None:
    """Else each would start a Ray and a Spark of its own. Some versions of pytest-xdist ignore groups in silence."""
    assert request.node.nodeid.endswith("@test_tidy.py") == ("PYTEST_XDIST_WORKER" in os.environ)
