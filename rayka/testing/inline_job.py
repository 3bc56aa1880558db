"""A job of a disk in its caller's own turns: nothing of it depends on another process."""

from typing import Any

from rayka.ports import Disk, Job


class InlineJob:
    """See `RunningJob`."""

    def __init__(self, job: Job, disk: Disk) -> None:
        self._job = job
        self._steps = job.run(disk)

    def __repr__(self) -> str:
        return f"<InlineJob {self._job!r}>"

    async def next(self, answer: object) -> Any:
        try:
            return self._steps.send(answer)
        except StopIteration:
            return None

    async def end(self) -> None:
        self._steps.close()
