"""What keeps failing is said at once and then once a minute: each time would bury the log, only once is overlooked."""

import asyncio
import logging
from collections.abc import Hashable
from dataclasses import dataclass

_AGAIN_S = 60.0
_KEPT_MAX = 100_000


@dataclass(slots=True)
class _Said:
    at_s: float
    unsaid_count: int = 0


class Repeats:
    """The failures of one part of a node, by what fails; used on its event loop. Of 100,000 the oldest is forgotten."""

    def __init__(self, logger: logging.Logger, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._level = level
        self._said: dict[Hashable, _Said] = {}

    def __repr__(self) -> str:
        return f"<Repeats {list(self._said)}>"

    def failed(self, what: Hashable, message: str) -> None:
        """It has failed, perhaps again."""
        now_s = asyncio.get_running_loop().time()
        said = self._said.get(what)
        if said is not None and now_s < said.at_s + _AGAIN_S:
            said.unsaid_count += 1
            return
        count = said.unsaid_count if said is not None else 0
        again = f" ({count + 1} times in the last {now_s - said.at_s:.0f} s)" if said is not None else ""
        self._said.pop(what, None)
        self._said[what] = _Said(now_s)
        if len(self._said) > _KEPT_MAX:
            del self._said[next(iter(self._said))]
        self._logger.log(self._level, "%s%s", message, again)

    def succeeded(self, what: Hashable) -> None:
        """The next failure is a new one."""
        self._said.pop(what, None)
