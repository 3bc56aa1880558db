"""The options of clients as a user sees them: in the types, in `help`, and by what a program may pass."""

import inspect
import json
import pydoc
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import pytest

import rayka
import rayka.options as typed
from rayka.cli.main import rayka as cli
from rayka.config import client_config, cluster_config

TABLES: dict[str, tuple[type, Any]] = {
    "Producer": (typed.ProducerOptions, client_config.ProducerConfig),
    "Consumer": (typed.ConsumerOptions, client_config.ConsumerConfig),
    "Admin": (typed.AdminOptions, client_config.AdminConfig),
    "workers": (typed.WorkersOptions, client_config.WorkersConfig),
    "Cluster.start": (typed.ClusterFields, cluster_config.ClusterSpec),
}
CLIENTS = ("Producer", "Consumer", "Admin")
# Where a user writes something else than what the program works with.
TAKEN_AS = {
    "acks",
    "compression_type",
    "nodes",
    "brokers",
    "coordinators",
    "scaling",
    "data_dir",
    "ray",
    "resources",
    "config",
    "transport_ports",
    "ray_options",
    "partition_assignment_strategy",
}


@pytest.mark.parametrize("name", TABLES)
def test_the_types_have_the_keys_of_the_configuration(name: str) -> None:
    options, model = TABLES[name]
    assert set(get_type_hints(options)) == set(model.model_fields)


@pytest.mark.parametrize("name", TABLES)
def test_the_types_are_those_of_the_configuration(name: str) -> None:
    options, model = TABLES[name]
    hints = get_type_hints(options)
    different = [
        key
        for key, field in model.model_fields.items()
        if field.annotation is not Any and key not in TAKEN_AS and hints[key] != field.annotation
    ]
    assert different == []


@pytest.mark.parametrize("name", CLIENTS)
def test_every_value_that_the_types_name_is_taken(name: str) -> None:
    options, model = TABLES[name]
    for key, hint in get_type_hints(options).items():
        for value in literals(hint):
            model.parse({key: value}, what=name)


@pytest.mark.parametrize("name", CLIENTS)
def test_help_lists_every_option_with_its_type_and_default(name: str) -> None:
    """Paste the list below `Options` in the docstring of the class when the configuration changes."""
    options, model = TABLES[name]
    hints = get_type_hints(options)
    expected = [
        f"{key}: {shown(hints[key])} = {default(key, field)}" for key, field in model.model_fields.items()
    ]
    text = pydoc.plain(pydoc.render_doc(getattr(rayka, name)))
    lines = {re.sub(r"^[ |]*", "", line) for line in text.split("\n")}
    assert [each for each in expected if each not in lines] == []


# ---- Help ----

RULE = re.compile(r"\b[ABCGHR]\d{1,3}\b")


def public() -> list[tuple[str, Any]]:
    """What `help` shows: the public names, and what a user gets from them."""
    modules = [rayka.aio, rayka.errors, rayka.testing, rayka.spark]
    named = [(each, getattr(rayka, each)) for each in rayka.__all__]
    inside = [
        (f"{module.__name__}.{each}", getattr(module, each)) for module in modules for each in dir(module)
    ]
    return [
        (name, each) for name, each in (*named, *inside) if inspect.isclass(each) or inspect.isfunction(each)
    ]


def test_help_has_no_codes_of_rules() -> None:
    found = {
        name: codes for name, each in public() if (codes := RULE.findall(pydoc.plain(pydoc.render_doc(each))))
    }
    assert found == {}


def test_the_help_of_commands_has_no_codes_of_rules() -> None:
    assert {" ".join(path): codes for path, text in helps(cli) if (codes := RULE.findall(text))} == {}


def helps(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The help of a command and of all below it."""
    context = click.Context(command)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps(below, *path, name)


def test_what_admin_returns_has_no_codes_of_rules() -> None:
    from rayka.client.admin import admin_partition_results, admin_results

    for module in (admin_results, admin_partition_results):
        assert RULE.findall(pydoc.plain(pydoc.render_doc(module))) == []


# ---- A user's program ----

RIGHT = """
import rayka
import rayka.aio
from pydantic import BaseModel


class Flight(BaseModel):
    carrier: str


def write(value: object) -> bytes:
    return b""


def handle(records: list[rayka.Record]) -> None: ...


rayka.Producer(acks="all", linger_ms=5, value_serializer=Flight, key_serializer=write, enable_idempotence=True)
rayka.Producer(config={"linger.ms": 5}, acks=1, compression_type="lz4", value_serializer="json")
rayka.Consumer("flights", value_deserializer=Flight, key_deserializer=bytes.decode, auto_offset_reset="earliest")
rayka.read("flights", value_deserializer="json")
rayka.Admin(request_timeout_ms=5_000)
rayka.Cluster.start(name="mine", brokers=3, data_dir="data", config={"num.partitions": 6})
rayka.Cluster.start(nodes=[{"id": 1, "roles": ["broker", "controller"]}])
rayka.aio.Producer(acks="all", linger_ms=5)
rayka.aio.Consumer("flights", group_id="delays", auto_offset_reset="earliest")
rayka.aio.Admin(request_timeout_ms=5_000)
rayka.workers(handle, "flights", group_id="delays", max=4, retries=1, session_timeout_ms=10_000)
version: str = rayka.__version__
"""
WRONG = """
import rayka
import rayka.aio

rayka.Producer(ackz="all")
rayka.Producer(acks="sometimes")
rayka.Producer(value_serializer="jason")
rayka.Consumer("flights", auto_offset_reset="first")
rayka.read("flights", max_poll_record=5)
rayka.Admin(request_timeout=5)
rayka.Cluster.start(brokrs=3)
rayka.aio.Producer(ackz="all")
rayka.aio.Consumer("flights", auto_offset_reset="first")
rayka.aio.Admin(request_timeout=5)
rayka.workers(print, "flights", group_id="delays", retrys=1)
"""


MYPY = """
[mypy]
strict = true
error_summary = false
cache_dir = cache
# A thousand modules in which no type of an option stands: half of the time.
[mypy-ray.*,pyspark.*]
follow_imports = skip
"""


def with_mypy(directory: Path) -> dict[str, set[int]]:
    """The lines with an error by file, as mypy finds them in the strictest mode."""
    (directory / "mypy.ini").write_text(MYPY)
    command = [sys.executable, "-m", "mypy", "right.py", "wrong.py"]
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    return by_file(re.findall(r"^(\w+\.py):(\d+): error", run.stdout, re.MULTILINE))


def with_pyright(directory: Path) -> dict[str, set[int]]:
    """The lines with an error by file, as pyright finds them."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    run = subprocess.run(
        [*command, "right.py", "wrong.py"], cwd=directory, capture_output=True, text=True, check=False
    )
    findings = json.loads(run.stdout)["generalDiagnostics"]
    return by_file([(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in findings])


def by_file(found: list[tuple[str, Any]]) -> dict[str, set[int]]:
    return {name: {int(line) for each, line in found if each == name} for name, _ in found}


@pytest.mark.parametrize("check", [with_mypy, with_pyright])
def test_type_checkers_find_wrong_options_and_nothing_else(
    check: Callable[[Path], dict[str, set[int]]], tmp_path: Path
) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    calls = {number for number, line in enumerate(WRONG.split("\n"), 1) if line.startswith("rayka.")}
    assert check(tmp_path) == {"wrong.py": calls}


# ---- How a type is written ----

WORDS: dict[Any, str] = {
    typed.WritableModel: "a pydantic model",
    typed.ReadableModel: "a pydantic model",
    typed.PlacedSerializer: "a callable",  # so are all objects that serialize, to help
    typed.PlacedDeserializer: "a callable",
    Sequence[object]: "a list of objects",
}


def shown(hint: Any) -> str:
    """A type as the docstrings write it: `"earliest" | "latest"`, `int`, `bool | None`."""
    if hint in (typed.AssignorName, Sequence[typed.AssignorName]):
        return "an assignor" if get_origin(hint) is Literal else "a list of them"
    if get_origin(hint) is Literal:
        return " | ".join(json.dumps(each) for each in get_args(hint))
    if get_origin(hint) is Union and type(None) not in get_args(hint):
        return " | ".join(dict.fromkeys(shown(each) for each in get_args(hint)))
    if isinstance(hint, types.UnionType) or (get_origin(hint) is not None and type(None) in get_args(hint)):
        return (
            " | ".join(dict.fromkeys(shown(each) for each in get_args(hint) if each is not type(None)))
            + " | None"
        )
    if get_origin(hint) is type:
        return WORDS[get_args(hint)[0]]
    return WORDS.get(hint) or ("a callable" if get_origin(hint) is not None else hint.__name__)


def default(key: str, field: Any) -> str:
    return (
        '"all"'
        if key == "acks"
        else json.dumps(field.default)
        if isinstance(field.default, str)
        else repr(field.default)
    )


def literals(hint: Any) -> list[Any]:
    """The values that a type names one by one."""
    if hint is type(None):
        return [None]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [value for each in get_args(hint) for value in literals(each)]
