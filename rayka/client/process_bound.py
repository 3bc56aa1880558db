"""What belongs to its process: a client has threads and connections that no pickle takes along."""

from typing import NoReturn, Self


class ProcessBound:
    """Refuses to be pickled, and so to be passed to a Ray task or actor, with what to do instead."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled, as it belongs to this process; make one where it is used, in the Ray task "
            "or actor itself, from the name of the cluster"
        )


class SyncClient(ProcessBound):
    """What all sync clients have: `with`, which closes them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends."""
