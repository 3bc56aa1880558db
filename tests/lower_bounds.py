"""`python -m tests.lower_bounds`: the library works with the lowest versions that it accepts, all at once.

Installs the wheel with each lower bound of `pyproject.toml` in a fresh environment, and runs a quick choice of the
tests there: the batch, the log, the clients, the in-process cluster, the reader of Spark (not Spark itself), and starts
on a real Ray.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests import fresh_environment
from tests.tidy import ROOT

CHOSEN = (
    "tests/test_config.py",
    "tests/protocol",
    "tests/log",
    "tests/client",
    "tests/cli/test_main.py",
    "tests/cli/test_narrator.py",
    "tests/spark/test_options.py",
    "tests/spark/test_plan.py",
    "tests/spark/test_reading.py",
    "tests/testing/test_consumer.py",
    "tests/testing/test_in_process_cluster.py",
    "tests/testing/test_producer.py",
    "tests/ray/test_cluster.py::test_stop_and_start_on_the_same_directory_keeps_topics_and_records",
    "tests/ray/test_processes.py::test_the_command_line_starts_uses_and_stops_a_cluster_that_ray_finds_under_token_authentication",
)
_LEFT_OUT = (
    "tests/log/test_idempotence_rules.py",  # reads pages of the tree that are compared with the tests
    # The end of the interpreter, forks, jobs, some forty processes, and groups: nothing there is a dependency's.
    "tests/client/test_at_exit.py",
    "tests/client/test_forks.py",
    "tests/client/group",
    "tests/log/test_job_process.py",
    # A model of thousands of steps finds no other call of a dependency than the tests of the log.
    "tests/log/test_log_model.py",
)
_TOOLS = ("hypothesis", "psutil", "pytest", "pytest-timeout", "pytest-xdist")


def main() -> int:
    """The exit code of the tests."""
    with tempfile.TemporaryDirectory(prefix="rk-") as scratch:
        directory = Path(scratch)
        wheel = fresh_environment.build_wheel(directory)
        lowest = [
            f"{each.name}=={bound.version}"
            for each in fresh_environment.requirements("spark")
            for bound in each.specifier
            if bound.operator in (">=", "==")
        ]
        environment = fresh_environment.make(directory / "environment", lowest)
        python = directory / "environment/bin/python"
        wanted = [f"rayka[spark] @ {wheel.as_uri()}", *fresh_environment.tools(*_TOOLS)]
        fresh_environment.install(wanted, directory, environment)

        away = directory / "tree"  # where `import rayka` finds the wheel's only
        shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        for each in ("cluster.yaml", "pyproject.toml"):
            shutil.copy(ROOT / each, away)
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", "-n2"]
        chosen = [*CHOSEN, *(f"--ignore={each}" for each in _LEFT_OUT)]
        return subprocess.run([*command, *chosen], cwd=away, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
