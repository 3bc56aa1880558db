"""The base of all configuration models: reads dotted or snake_case keys.

An unknown key is a ConfigError that names the nearest known key; nothing is accepted and ignored.
"""

import difflib
import json
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from rayka.errors import ConfigError

_INT64_MAX = 2**63 - 1  # Kafka's LONG, and the largest number that messages hold


def dotted(name: str) -> str:
    """`segment_bytes` as Kafka writes it: `segment.bytes`."""
    return name.replace("_", ".")


def snake(name: str) -> str:
    """`segment.bytes` as Python writes it: `segment_bytes`."""
    return name.replace(".", "_")


class ConfigModel(BaseModel):
    """A model whose keys are Kafka's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _by_its_keys(cls, values: Any) -> Any:
        """A section that stands in another one comes as it was written, where `parse` has looked at no key."""
        if not isinstance(values, Mapping):
            return values
        for key in values:
            if snake(str(key)) not in cls.model_fields:
                raise ValueError(_unknown_key(str(key), cls.model_fields))
        named = {snake(str(key)): value for key, value in values.items()}
        if len(named) < len(values):
            raise ValueError("expected each key once, dotted or in snake_case")
        return named

    @field_validator("*", mode="wrap")
    @classmethod
    def _is_what_it_says(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """True is 1 to Python, so that `retention.ms: yes` would delete records after a millisecond; and a number above
        Kafka's largest is none that nodes can reckon with.
        """
        if isinstance(value, bool) and _is_number(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError("expected a number")
        if isinstance(value, str) and _is_number(cls.model_fields[str(info.field_name)].annotation):
            _refuse_unit(str(info.field_name), value)
        checked = check(value)
        if isinstance(checked, int) and checked > _INT64_MAX:
            raise ValueError(f"expected at most {_INT64_MAX}")
        # Refuses NaN, too: `checked > _INT64_MAX` would let it pass.
        if isinstance(checked, float) and not checked <= float(_INT64_MAX):
            raise ValueError(f"expected at most {_INT64_MAX}")
        return checked

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, what: str) -> Self:
        """The configuration from dotted or snake_case keys.

        Raises ConfigError that names the key, what was expected and what was found. `what` says whose keys these are.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"{what}: expected a mapping of keys to values, found {type(values).__name__}")
        named: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for key, value in values.items():
            name = cls.field_of(str(key), what=what)
            if name in named:
                raise ConfigError(f"{what}: {key!r} is given twice, dotted and in snake_case; keep one")
            named[name], spelled[name] = value, str(key)
        try:
            return cls(**named)
        except ValidationError as error:
            raise ConfigError(f"{what}: {_first_problem(error, spelled)}") from None

    @classmethod
    def field_of(cls, key: str, *, what: str) -> str:
        """The field that a dotted or snake_case key names. Raises ConfigError naming the nearest key that is known."""
        name = snake(key)
        if name not in cls.model_fields:
            raise ConfigError(f"{what}: {_unknown_key(key, cls.model_fields)}")
        return name

    def texts(self) -> dict[str, str]:
        """What is in force, by dotted key, as text."""
        return {dotted(name): _as_text(getattr(self, name)) for name in sorted(type(self).model_fields)}

    def overrides(self) -> dict[str, str]:
        """What was set explicitly, by dotted key, as text."""
        return {dotted(name): _as_text(getattr(self, name)) for name in sorted(self.model_fields_set)}


def _is_number(annotation: Any) -> bool:
    kinds = set(get_args(annotation) or (annotation,))
    return bool(kinds & {int, float}) and kinds <= {int, float, NoneType}


_NO_TRANSACTIONS = "there are no transactions yet"
# Kafka's keys for which the nearest known one would lead astray.
_ABSENT = {
    **dict.fromkeys(("transactional_id", "isolation_level"), _NO_TRANSACTIONS),
    "bootstrap_servers": "clients name a cluster on Ray instead of addresses: cluster='rayka'",
}


def _unknown_key(key: str, known: Mapping[str, Any]) -> str:
    if snake(key) in _ABSENT:
        return f"unknown key {key!r}; {_ABSENT[snake(key)]}"
    style = snake if "_" in key else dotted
    names = sorted(style(name) for name in known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"the nearest known key is {near[0]!r}" if near else f"known keys: {', '.join(names)}"
    return f"unknown key {key!r}; {hint}"


def _first_problem(error: ValidationError, spelled: Mapping[str, str]) -> str:
    """The first key that is wrong, as it was written."""
    problem = error.errors()[0]
    first, *deeper = (str(part) for part in problem["loc"])
    key, says = ".".join([spelled.get(first, first), *deeper]), problem["msg"].removeprefix("Value error, ")
    is_section = isinstance(problem["input"], BaseModel)  # then what it says names the key
    return f"{key}: {says}" if is_section else f"{key}: {says}, found {problem['input']!r}"


# Units that people write behind a number, each in the unit of the key.
_UNITS = {
    "ms": {
        "ms": 1,
        "s": 1_000,
        "m": 60_000,
        "min": 60_000,
        "h": 3_600_000,
        "d": 86_400_000,
        "w": 604_800_000,
    },
    "bytes": {
        **{"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40},
        **{"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40},
        **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    },
}
_UNIT_NAMES = {"ms": "milliseconds", "bytes": "bytes"}
_WITH_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def _refuse_unit(name: str, text: str) -> None:
    """Kafka's numbers have no units: `retention.ms=3d` is refused with the number that was meant.

    Raises ValueError.
    """
    matched = _WITH_UNIT.fullmatch(text)
    if matched is None:
        return
    unit = next((each for each in _UNITS if each in name.split("_")), None)
    amount = _UNITS[unit].get(matched[2].lower()) if unit else None
    expected = f"expected a number of {_UNIT_NAMES[unit]}" if unit else "expected a number"
    if amount is not None:
        raise ValueError(f"{expected} without a unit, as {round(float(matched[1]) * amount)}")
    raise ValueError(f"{expected} without a unit")


def _as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
