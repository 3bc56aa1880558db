"""The links between the nodes and clients of one simulation: which are cut, and which are slow.

Links are directed. What is cut loses messages both when they leave and when they arrive.
"""

from collections.abc import Iterable

Link = tuple[int, int]  # from, to


class Links:
    """All that faults do to links."""

    def __init__(self) -> None:
        self._cuts: dict[Link, int] = {}
        self._extra_us: dict[Link, float] = {}

    def __repr__(self) -> str:
        return f"<Links cut={sorted(self._cuts)}>"

    def cut(self, links: Iterable[Link]) -> None:
        """These links lose everything, until as many times mended."""
        for link in links:
            self._cuts[link] = self._cuts.get(link, 0) + 1

    def mend(self, links: Iterable[Link]) -> None:
        """Undoes one `cut` of each."""
        for link in links:
            count = self._cuts.get(link, 0)
            if count <= 1:
                self._cuts.pop(link, None)
            else:
                self._cuts[link] = count - 1

    def clog(self, link: Link, extra_ms: float) -> None:
        """This link takes so much longer; 0 is as before."""
        if extra_ms:
            self._extra_us[link] = extra_ms * 1000
        else:
            self._extra_us.pop(link, None)

    def heal(self) -> None:
        """Every link works."""
        self._cuts.clear()
        self._extra_us.clear()

    def is_cut(self, link: Link) -> bool:
        return link in self._cuts

    def extra_us(self, link: Link) -> float:
        """How much longer a message takes than on a link that is not clogged."""
        return self._extra_us.get(link, 0.0)
