"""What belongs to its process: a client has threads and connections that no pickle takes along."""

from typing import NoReturn


class ProcessBound:
    """Refuses to be pickled, and so to be passed to a Ray task or actor, with what to do instead."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled, as it belongs to this process; make one where it is used, in the Ray task "
            "or actor itself, from the name of the cluster"
        )
