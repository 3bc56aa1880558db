"""Fixtures that several tests of clients share."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def hectic_threads() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual_s)
