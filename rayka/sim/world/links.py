"""The links between the nodes and clients of one simulation: which are cut, and which are slow.

Links are directed. What is cut loses messages both when they leave and when they arrive.
"""

from collections.abc import Iterable

Link = tuple[int, int]  # from, to


class Links:
    """All that faults do to links."""

    def __init__(self) -> None:
        self.cuts: dict[Link, int] = {}  # how often each is cut
        self.extra_us: dict[Link, float] = {}  # of each that is clogged

    def __repr__(self) -> str:
        return f"<Links cut={sorted(self.cuts)}>"

    def cut(self, links: Iterable[Link]) -> None:
        """These links lose everything, until as many times mended."""
        for link in links:
            self.cuts[link] = self.cuts.get(link, 0) + 1

    def mend(self, links: Iterable[Link]) -> None:
        """Undoes one `cut` of each."""
        for link in links:
            count = self.cuts.get(link, 0)
            if count <= 1:
                self.cuts.pop(link, None)
            else:
                self.cuts[link] = count - 1

    def clog(self, link: Link, extra_ms: float) -> None:
        """This link takes so much longer; 0 is as before."""
        if extra_ms:
            self.extra_us[link] = extra_ms * 1000
        else:
            self.extra_us.pop(link, None)

    def heal(self) -> None:
        """Every link works."""
        self.cuts.clear()
        self.extra_us.clear()
