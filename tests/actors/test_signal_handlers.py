"""Signal handlers of a program, around what replaces them: Ray's connection, and Spark's session."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rayka.actors.ray_connection import kept_signal_handlers

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def own(number: int, frame: object) -> None:
    """The program's."""


def theirs(number: int, frame: object) -> None:
    """Of Ray or Spark."""


@pytest.fixture(autouse=True)
def former() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("handler", [own, signal.SIG_IGN])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_handler_of_the_program_is_set_again_also_after_an_error(
    number: signal.Signals, handler: Callable[..., Any]
) -> None:
    def connect() -> None:
        with kept_signal_handlers():
            signal.signal(number, theirs)
            raise LookupError

    signal.signal(number, handler)
    with pytest.raises(LookupError):
        connect()
    assert signal.getsignal(number) == handler


@pytest.mark.parametrize(
    ("number", "default"), [(signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)]
)
def test_without_a_handler_of_the_program_the_new_one_stays(
    number: signal.Signals, default: Callable[..., Any]
) -> None:
    signal.signal(number, default)
    with kept_signal_handlers():
        signal.signal(number, theirs)
    assert signal.getsignal(number) == theirs
