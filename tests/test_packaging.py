"""What an installation of rayka gets: the wheel's files and metadata, and pins that do not drift."""

import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

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
    assert {Path(name).parts[0] for name in packaged} == {"rayka"}


def test_the_wheel_ships_types_and_pages(wheel: zipfile.ZipFile) -> None:
    assert {"rayka/py.typed", "rayka/docs/architecture.md", "rayka/docs/architecture.svg"} <= set(
        wheel.namelist()
    )


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


def test_every_direct_dependency_is_pinned_exactly() -> None:
    extras = project()["optional-dependencies"]
    groups = [
        project()["dependencies"],
        extras["spark"],
        extras["demo"],
        pyproject()["dependency-groups"]["dev"],
    ]
    loose = [each for group in groups for each in group if "==" not in each]
    assert loose == ["rayka[spark,demo]"]


def test_a_date_holds_transitive_dependencies_and_no_lock_file_does() -> None:
    assert pyproject()["tool"]["uv"]["exclude-newer"]
    assert not [each.name for each in tracked() if each.name.endswith(".lock")]


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def project() -> dict:
    return pyproject()["project"]
