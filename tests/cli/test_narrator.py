"""What a long command says: one plain line a step in a pipe, also when the step fails."""

import io
import logging
import re

import pytest
from rich.console import Console

from rayka.cli.narrator import Narrator
from rayka.cli.output import OnStderr


@pytest.fixture
def narrator():
    return Narrator(Console(file=io.StringIO(), width=40))


def told(narrator):
    return re.sub(r"\d+\.\d s", "N s", narrator.console.file.getvalue())


def test_a_step_is_one_line_when_it_is_done(narrator):
    with narrator.step("Counting") as step:
        step.expect(2)
        step.advance(2)
        step.detail = "two, and a text that is longer than the console is wide"
    assert told(narrator) == "Counting: two, and a text that is longer than the console is wide (N s)\n"


def test_a_step_that_fails_says_so_and_passes_the_error_on(narrator):
    with pytest.raises(KeyboardInterrupt), narrator.step("Counting"):
        raise KeyboardInterrupt
    assert told(narrator) == "failed: Counting\n"


def test_a_rate_counts_records_and_bytes_by_the_second(narrator):
    with narrator.step("Counting") as step:
        text = step.rate(336_776, 107_000_000)
        without_bytes = step.rate(336_776)
    assert re.fullmatch(r"336,776 records, [\d,]+/s, [\d,]+ MB/s", text)
    assert re.fullmatch(r"336,776 records, [\d,]+/s", without_bytes)


def test_a_terminal_gets_a_tick():
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    with Narrator(console).step("Counting"):
        pass
    assert "✓ Counting (0.0 s)" in console.file.getvalue()


def test_a_line_about_ray_stands_above_a_bar_that_is_shown():
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    record = logging.makeLogRecord({"msg": "using the Ray at %s", "args": ("127.0.0.1:1",)})
    with Narrator(console).step("Connecting"):
        OnStderr().emit(record)
    assert "using the Ray at 127.0.0.1:1\n" in console.file.getvalue()
