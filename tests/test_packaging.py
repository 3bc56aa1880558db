"""What an installation of rayka gets: the wheel's files, its metadata, its versions (ranges; exact for the tests)."""

import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rayka
from tests import lower_bounds
from tests.tidy import ROOT, tracked


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = directory.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_file_of_the_package_and_no_tests(wheel: zipfile.ZipFile) -> None:
    packaged = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {each.name for each in tracked() if each.name.startswith("rayka/")} <= packaged
    assert {Path(name).parts[0] for name in packaged} == {"rayka", "rayka_demo"}


def test_the_wheel_ships_the_story_of_the_demo(wheel: zipfile.ZipFile) -> None:
    story = {each.name.removeprefix("examples/") for each in tracked() if "examples/rayka_demo/" in each.name}
    assert "rayka_demo/story.py" in story <= set(wheel.namelist())


def test_the_wheel_ships_types_and_pages(wheel: zipfile.ZipFile) -> None:
    assert {"rayka/py.typed", "rayka/docs/architecture.md", "rayka/docs/architecture.svg"} <= set(
        wheel.namelist()
    )


def test_the_wheel_ships_the_cluster_yaml_of_the_repository(wheel: zipfile.ZipFile) -> None:
    assert wheel.read("rayka/cli/cluster.yaml") == (ROOT / "cluster.yaml").read_bytes()


def test_the_metadata_names_version_python_licence_and_extras(wheel: zipfile.ZipFile) -> None:
    (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Version"] == project()["version"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("Provides-Extra") == ["demo", "spark"]


def test_the_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    (name,) = [each for each in wheel.namelist() if each.endswith("entry_points.txt")]
    assert "rayka = rayka.cli.main:main" in wheel.read(name).decode()


def test_the_program_and_the_command_line_know_their_version() -> None:
    command = [sys.executable, "-c", "from rayka.cli.main import main; main()", "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == f"rayka {rayka.__version__}\n"
    assert rayka.__version__ == project()["version"]


# ---- Versions ----

PRE_RELEASE = "raydp"  # no range: another pre-release may be another interface


def test_a_user_may_have_other_versions_than_the_developers() -> None:
    exact = [name for name, each in asked_for().items() if not str(each.specifier).count(">=")]
    assert exact == [PRE_RELEASE]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("ray", "2.56.0"), ("ray", "2.59.0"), ("pyarrow", "23.0.0"), ("pyarrow", "25.0.0"), ("click", "8.1.0"),
     ("click", "8.1.8"), ("numpy", "1.26.0"), ("numpy", "2.2.0"), ("pydantic", "2.11.0"), ("rich", "13.0.0")],
)  # fmt: skip
def test_versions_that_teams_have_are_accepted(name: str, chosen: str) -> None:
    assert asked_for()[name].specifier.contains(chosen)


def test_development_has_exact_versions() -> None:
    constraints = [Requirement(each) for each in pyproject()["tool"]["uv"]["constraint-dependencies"]]
    group = pyproject()["dependency-groups"]["dev"]
    tools = [Requirement(each) for each in group if not each.startswith("rayka")]
    assert {each.name for each in constraints} == set(asked_for())
    assert [str(each) for each in (*constraints, *tools) if not str(each.specifier).startswith("==")] == []


def test_the_tests_run_with_the_exact_versions() -> None:
    constraints = [Requirement(each) for each in pyproject()["tool"]["uv"]["constraint-dependencies"]]
    assert [str(each) for each in constraints if not each.specifier.contains(version(each.name), True)] == []


def test_the_exact_versions_are_within_the_ranges() -> None:
    constraints = [Requirement(each) for each in pyproject()["tool"]["uv"]["constraint-dependencies"]]
    outside = [
        each.name
        for each in constraints
        if not asked_for()[each.name].specifier.contains(str(each.specifier).removeprefix("=="), True)
    ]
    assert outside == []


def test_a_date_holds_transitive_dependencies_and_no_lock_file_does() -> None:
    assert pyproject()["tool"]["uv"]["exclude-newer"]
    assert not [each.name for each in tracked() if each.name.endswith(".lock")]


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def project() -> dict:
    return pyproject()["project"]


def test_the_tests_for_the_lowest_versions_are_there() -> None:
    gone = []
    for path, _, name in (each.partition("::") for each in lower_bounds.CHOSEN):
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text()):
            gone.append((path, name))
    assert gone == []


def asked_for() -> dict[str, Requirement]:
    """What the library and its extras ask for, by name."""
    listed = [project()["dependencies"], *project()["optional-dependencies"].values()]
    return {each.name: each for each in (Requirement(text) for group in listed for text in group)}
