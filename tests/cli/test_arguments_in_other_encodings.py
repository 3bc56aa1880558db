"""Arguments that are no UTF-8, in every command: taken as data and as paths, refused as anything else."""

import os
from collections.abc import Iterator

import click
import pytest

from rayka.cli.main import run
from rayka.cli.shared_options import DATA
from tests.cli.command_tree import all_commands

OTHER = os.fsdecode(b"caf\xe9")
REFUSED = "expected text in UTF-8, found b'caf\\xe9'"


def _textual() -> Iterator[tuple[str, click.Parameter]]:
    """Every argument and option of every command that takes a value, with the command's path."""
    for path, command in all_commands().items():
        if not isinstance(command, click.Group):
            for each in command.params:
                if not getattr(each, "is_flag", False):
                    yield path, each


def _takes_bytes(parameter: click.Parameter) -> bool:
    return parameter.type is DATA or isinstance(parameter.type, click.Path)


def _line(path: str, wrong: click.Parameter) -> list[str]:
    """The command line that gives this parameter the other encoding, and all other arguments some text."""
    words = path.split()[1:]
    if isinstance(wrong, click.Option):
        words += [wrong.opts[0], OTHER]
    for each in all_commands()[path].params:
        if isinstance(each, click.Argument):
            words.append(OTHER if each is wrong else "1")
    return words


@pytest.mark.parametrize(
    ("path", "parameter"),
    [pytest.param(*each, id=f"{each[0]} {each[1].name}") for each in _textual() if not _takes_bytes(each[1])],
)
def test_a_name_that_is_no_utf8_is_refused_before_anything_else(
    path: str, parameter: click.Parameter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_line(path, parameter)) == 2
    assert REFUSED in capsys.readouterr().err


def test_data_and_paths_are_taken_in_any_encoding() -> None:
    taken = {(path, each.name) for path, each in _textual() if _takes_bytes(each)}
    assert {each for each in taken if each[0] in ("rayka produce", "rayka consume")} == {
        ("rayka produce", "key"),
        ("rayka produce", "key_delimiter"),
        ("rayka produce", "delimiter"),
        ("rayka produce", "headers"),
        ("rayka consume", "text"),
        ("rayka consume", "key_delimiter"),
        ("rayka consume", "delimiter"),
    }
    paths = {"start", "init", "doctor", "log", "metadata", "partition", "sim", "produce", "consume"}
    assert {path.split()[1] for path, _ in taken} == paths


def test_the_name_of_a_header_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", "t", "--header", f"{OTHER}=1"]) == 2
    assert "--header: expected a name in UTF-8, found b'caf\\xe9'" in capsys.readouterr().err
