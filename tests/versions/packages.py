"""Another version of the package beside this one, in one process: a copy under another name, so that two versions have
nothing in common but the bytes that they send and the files that they leave.
"""

import ast
import importlib
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.tidy import ROOT

_NAME = re.compile(r"\brayka(?=\.[a-z_])|(?<=import )rayka\b|(?<=from )rayka\b")
_USED = ("node.controller_node", "node.broker_node", "client.producer.producer", "client.consumer.consumer")
# What messages begin with: these get no field, or it would stand in the middle.
_BEGINNINGS = (
    "PartitionMessage", "PartitionAnswer", "NamedPartitionMessage", "QuorumAnswer", "TopicResults", "_GroupsRequest",
    "_ResourceMessage",
)  # fmt: skip
_LATER_FIELD = "    added_by_a_later_version: int = 7\n"
_METADATA_VERSIONS = re.compile(r"(METADATA_VERSION_MIN, METADATA_VERSION_MAX = \d+), (\d+)")


@dataclass(frozen=True)
class Version:
    """One version of the package, by the name under which it is imported."""

    name: str

    def module(self, path: str) -> ModuleType:
        """`node.broker_node` of this version."""
        return importlib.import_module(f"{self.name}.{path}")

    def get(self, path: str) -> Any:
        """`node.broker_node.BrokerNode` of this version. A name that is not at the path is looked for in all modules,
        because versions keep it in different ones.
        """
        module, _, name = path.rpartition(".")
        try:
            return getattr(self.module(module), name)
        except (ModuleNotFoundError, AttributeError):
            return getattr(self.module(self._module_of(name)), name)

    def _module_of(self, name: str) -> str:
        defines = re.compile(rf"^(class|def|async def) {name}\b|^{name}(:| =)", re.MULTILINE)
        (package,) = importlib.import_module(self.name).__path__
        found = [each for each in Path(package).rglob("*.py") if defines.search(each.read_text())]
        if len(found) != 1:
            raise LookupError(f"{self.name}: expected one module that defines {name}, found {found}")
        return ".".join(found[0].relative_to(package).with_suffix("").parts)


THIS = Version("rayka")


@contextmanager
def later_version(directory: Path) -> Iterator[Version]:
    """This version as it may be one day: each message has one more field at its end, which is sent, and it knows one
    more version of the metadata.
    """
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "rayka").rglob("*.py")}
    with _imported(
        directory, "rayka_later", {name: _later(name, text) for name, text in texts.items()}
    ) as version:
        yield version


@contextmanager
def version_at(directory: Path, revision: str) -> Iterator[Version]:
    """The package as it was at a commit."""
    done = subprocess.run(["git", "archive", revision, "rayka"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        found = {each.name: archive.extractfile(each) for each in archive if each.name.endswith(".py")}
        texts = {name: file.read().decode() for name, file in found.items() if file is not None}
    with _imported(directory, "rayka_former", texts) as version:
        yield version


@contextmanager
def _imported(directory: Path, name: str, texts: dict[str, str]) -> Iterator[Version]:
    for path, text in texts.items():
        copy = directory / name / Path(path).relative_to("rayka")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_NAME.sub(name, text))
    sys.path.insert(0, str(directory))
    try:
        version = Version(name)
        for each in _USED:  # now: nodes would wait for it
            version.module(each)
        yield version
    finally:
        sys.path.remove(str(directory))
        for module in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[module]


def _later(name: str, text: str) -> str:
    """With what a later version would have added."""
    if name == "rayka/metadata/metadata_records.py":
        later, count = _METADATA_VERSIONS.subn(lambda found: f"{found[1]}, {int(found[2]) + 1}", text)
        assert count == 1, name
        return later
    return with_later_fields(text) if name.startswith("rayka/protocol/") else text


def with_later_fields(text: str) -> str:
    """Each message gets its field."""
    lines = text.splitlines(keepends=True)
    for node in sorted(_messages(ast.parse(text)), key=lambda each: -each.lineno):
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        last = fields[-1] if fields else node.body[0]  # the docstring of one without fields
        lines.insert(last.end_lineno or last.lineno, _LATER_FIELD)
    return "".join(lines)


def _messages(tree: ast.Module) -> list[ast.ClassDef]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.name not in _BEGINNINGS
        and any(ast.unparse(base).startswith(("Message", "Request[", *_BEGINNINGS)) for base in node.bases)
    ]
