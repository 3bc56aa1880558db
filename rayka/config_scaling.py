"""Between which counts brokers and coordinators come and go, and when: what `brokers: {min: 3, max: 12}`, the same of
coordinators, and `scaling` hold.
"""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from rayka.config_model import ConfigModel

_COUNT_MAX = 1000
BROKER_TARGETS = ("disk_share", "processor_share", "bytes_in", "bytes_out", "partitions")
COORDINATOR_TARGETS = ("coordinator_processor_share",)


class CountRange(ConfigModel):
    """A count that the load decides."""

    min: int = Field(ge=1, le=_COUNT_MAX, strict=True)
    max: int = Field(ge=1, le=_COUNT_MAX, strict=True)

    @field_validator("max")
    @classmethod
    def _is_not_below_min(cls, count: int, info: ValidationInfo) -> int:
        least = info.data.get("min", count)
        if count < least:
            raise ValueError(f"expected min, which is {least}, or more")
        return count

    def __str__(self) -> str:
        return f"{self.min} to {self.max}"


class Scaling(ConfigModel):
    """What a broker or coordinator may have to do on average, and for how long it must be more or less before one comes
    or goes.

    One comes when the average of some target is above it; one goes when without it every average would be below 70 % of
    its target. A target that is `null` does not count.
    """

    disk_share: float | None = Field(default=0.7, gt=0, le=1)
    """Which share of brokers' disks may be full."""

    processor_share: float | None = Field(default=0.7, gt=0, le=1)
    """Which share of one core a broker's process may take."""

    bytes_in: int | None = Field(default=None, ge=1)
    """How many bytes a second clients may write to a broker."""

    bytes_out: int | None = Field(default=None, ge=1)
    """How many bytes a second clients may read from a broker."""

    partitions: int | None = Field(default=4_000, ge=1)
    """How many replicas of partitions a broker may hold."""

    coordinator_processor_share: float | None = Field(default=0.7, gt=0, le=1)
    """Which share of one core a coordinator's process may take: the one target of coordinators."""

    out_window_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    """How long the load must be above a target before a node comes, in seconds."""

    in_window_s: float = Field(default=600.0, ge=0, allow_inf_nan=False)
    """How long the load must be low before a node goes, in seconds."""

    never: tuple[Literal["out", "in"], ...] = ()
    """What never happens by itself: `out`, that nodes come; `in`, that they go."""

    def of_coordinators(self) -> Self:
        """The targets of coordinators in the place of those of brokers."""
        others: dict[str, None] = dict.fromkeys(BROKER_TARGETS)
        return self.model_copy(update={**others, "processor_share": self.coordinator_processor_share})
