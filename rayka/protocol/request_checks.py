"""How a message checks what is asked: with an error that names the field, what was expected and what was found."""

from collections import Counter
from collections.abc import Iterable

from rayka.errors import InvalidRequest


def require(holds: bool, field: str, expected: str, found: object) -> None:
    """Raises InvalidRequest unless it holds."""
    if not holds:
        raise InvalidRequest(f"{field}: expected {expected}, found {found}")


def check_each_once(field: str, names: Iterable[str]) -> None:
    """Raises InvalidRequest that lists the names which stand there more than once."""
    given = tuple(names)
    if len(set(given)) < len(given):  # to count them takes ten times as long
        repeated = sorted(name for name, count in Counter(given).items() if count > 1)
        require(False, field, "each once", repeated)
