"""Which session `rayka.spark.stop` ends."""

import sys
import types

import pytest

from rayka.spark import session


def test_a_session_that_the_program_made_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_spark() -> None:
        raise AssertionError("it is not ours to end")

    monkeypatch.setattr(session, "_begun", [])
    monkeypatch.setitem(sys.modules, "raydp", types.SimpleNamespace(stop_spark=stop_spark))
    session.stop()
