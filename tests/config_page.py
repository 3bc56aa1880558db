"""`python -m tests.config_page`: writes the guide's page of all configuration keys from the tables in `rayka.config`.

Each key is one row there: type, default, bounds and, in the docstring below it, what it does.
`tests/test_config_page.py` fails when the page is not what the rows say.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from rayka.config.broker_config import BROKER_SYNONYMS, DYNAMIC_BROKER_KEYS, UNIFORM_BROKER_KEYS, BrokerConfig
from rayka.config.client_config import AdminConfig, ConsumerConfig, ProducerConfig, WorkersConfig
from rayka.config.cluster_config import ClusterSpec, Scaling
from rayka.config.config_model import ConfigModel, dotted
from rayka.config.topic_config import TopicConfig
from tests.tidy import ROOT

PAGE = ROOT / "rayka/docs/guide/configuration-reference.md"
_NEVER = 2**63 - 1
_COORDINATORS = ("group_", "offset")
_CONTROLLERS = ("controller_", "metadata_")
_TOPICS_BY_BROKER_KEY = {broker: topic for topic, broker in BROKER_SYNONYMS.items()}
COMMON = (
    AdminConfig.model_fields.keys() & ProducerConfig.model_fields.keys() & ConsumerConfig.model_fields.keys()
)
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
# What users write where the program works with something else.
_TYPES = {
    "acks": "`all`, `1`, `0`",
    "cleanup_policy": "`delete`, `compact`, `compact,delete`",
    "log_cleanup_policy": "`delete`, `compact`, `compact,delete`",
    "partition_assignment_strategy": "a name or a list",
    "key_serializer": "see there",
    "value_serializer": "see there",
    "key_deserializer": "see there",
    "value_deserializer": "see there",
    "partitioner": "function",
    "interceptors": "list of objects",
    "on_poison": "`stop`, `skip`, function",
    "ray_options": "mapping",
    "nodes": "list of mappings",
    "brokers": "int or mapping",
    "coordinators": "int or mapping",
    "scaling": "mapping",
    "never": "list of `out`, `in`",
    "data_dir": "str or list",
    "ray": "mapping",
    "resources": "mapping",
    "config": "mapping",
    "transport_ports": "two ints",
}
_DEFAULTS = {
    "acks": "`all`",
    "ray": "`auto`",
    "resources": "0.05 CPUs, controllers and coordinators 0.02",
    "config": "",
}

_INTRODUCTION = """# All configuration keys

{}

{}
""".format(
    "This page is made from the tables that Rayka itself goes by (the modules of `rayka/config`):"
    " `uv run python -m tests.config_page` writes it anew. [Configure clusters and topics](configure.md) says where"
    " keys are written.",
    "Names are Kafka's. In YAML, dicts and on the command line they are dotted (`min.insync.replicas`), as keyword"
    " arguments in Python they are in snake_case (`min_insync_replicas`); YAML and dicts take either. An unknown key is"
    " an error that names the nearest known one. Bounds are inclusive unless they say otherwise.",
)


class Section(NamedTuple):
    """A table of the page."""

    title: str
    text: str
    model: type[ConfigModel]
    names: Iterable[str]
    is_dotted: bool = False
    has_dynamic: bool = False


def sections() -> Iterator[Section]:
    """In the order of the page."""
    yield Section(
        "The cluster",
        "Keys of `cluster.yaml`, and keyword arguments of `rayka.Cluster.start`.",
        ClusterSpec,
        ClusterSpec.model_fields,
    )
    yield Section(
        "Scaling",
        "Keys below `scaling` in `cluster.yaml`, where `brokers` or `coordinators` has a min and a max:"
        " [growing and shrinking](scale.md#growing-and-shrinking).",
        Scaling,
        Scaling.model_fields,
    )
    yield Section(
        "Topics",
        "For `create_topic(configs=...)` and `rayka topic create --config`. All of them can be changed while the"
        " cluster runs, with `rayka topic alter`. Where a topic says nothing,"
        " [the brokers' defaults](#defaults-of-topics) hold.",
        TopicConfig,
        TopicConfig.model_fields,
        is_dotted=True,
    )
    yield from _broker_sections()
    yield Section(
        "All clients", "", AdminConfig, [name for name in AdminConfig.model_fields if name in COMMON]
    )
    for title, text, model in (
        ("Admin", "Beside those of all clients.", AdminConfig),
        ("Producer", "Beside those of all clients.", ProducerConfig),
        ("Consumer", "Beside those of all clients; for `rayka.read`, too, without a group.", ConsumerConfig),
    ):
        yield Section(title, text, model, [name for name in model.model_fields if name not in COMMON])
    own = [name for name in WorkersConfig.model_fields if name in WorkersConfig.__annotations__]
    yield Section("Workers", "Of `rayka.workers`, beside those of a consumer.", WorkersConfig, own)


def _broker_sections() -> Iterator[Section]:
    rest = [name for name in BrokerConfig.model_fields if name not in _TOPICS_BY_BROKER_KEY]
    coordinators = [name for name in rest if name.startswith(_COORDINATORS)]
    controllers = [name for name in rest if name.startswith(_CONTROLLERS)]
    brokers = [name for name in rest if name not in {*coordinators, *controllers}]
    for title, text, names in (
        (
            "Brokers",
            "Keys below `config` in `cluster.yaml`. Those that are dynamic can be set while brokers run, for all of"
            " them or for one, with `rayka broker config`; the others take effect when a node starts.",
            brokers,
        ),
        (
            "Defaults of topics",
            "Keys below `config`, too: what a topic has that says nothing itself.",
            BROKER_SYNONYMS.values(),
        ),
        ("Coordinators", "Keys below `config`: groups and their offsets.", coordinators),
        ("Controllers", "Keys below `config`: the quorum and its metadata.", controllers),
    ):
        yield Section(title, text, BrokerConfig, names, is_dotted=True, has_dynamic=True)


def page() -> str:
    """The text of the page."""
    return "\n".join([_INTRODUCTION, *(_table(each) for each in sections())])


def _table(section: Section) -> str:
    columns = ["key", "type", "default", "bounds", *["dynamic"] * section.has_dynamic, "what it does"]
    lines = [f"## {section.title}", "", *[section.text, ""] * bool(section.text)]
    lines += [_row(columns), _row(["---"] * len(columns))]
    for name in section.names:
        field = section.model.model_fields[name]
        cells = [
            f"`{dotted(name) if section.is_dotted else name}`",
            _TYPES.get(name) or _type(field.annotation),
        ]
        cells += [_DEFAULTS.get(name, _default(name, field)), _bounds(field)]
        cells += [_dynamic(name)] * section.has_dynamic
        lines.append(_row([*cells, what_it_does(section.model, name)]))
    return "\n".join([*lines, ""])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _type(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(f"`{each.value}`" for each in annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_type(each) for each in get_args(annotation) if each is not NoneType)
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _default(name: str, field: FieldInfo) -> str:
    value = field.default
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, (int, float)) and value >= _NEVER:
        return "no bound"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{value}`{_readable(name, value)}"


def _readable(name: str, value: Any) -> str:
    """Large numbers again, in units that people count in."""
    if not isinstance(value, int):
        return ""
    is_time, is_size = name.endswith("_ms"), any(each in name for each in ("bytes", "size", "memory"))
    for unit, unit_name in _MS if is_time else _BYTES if is_size else ():
        if value >= unit and value % unit == 0:
            return f" ({value // unit} {unit_name})"
    return ""


def _bounds(field: FieldInfo) -> str:
    found = {
        sign: getattr(each, attribute)
        for each in field.metadata
        for sign, attribute in (("≥", "ge"), (">", "gt"), ("≤", "le"), ("length ≥", "min_length"))
        if getattr(each, attribute, None) is not None
    }
    return ", ".join(f"{sign} {bound}" for sign, bound in found.items())


def _dynamic(name: str) -> str:
    if name not in DYNAMIC_BROKER_KEYS:
        return "no"
    return "for all brokers" if name in UNIFORM_BROKER_KEYS else "yes"


def what_it_does(model: type[ConfigModel], name: str) -> str:
    """The docstring of a key; for a topic's default that has none, whose default it is."""
    topic_key = _TOPICS_BY_BROKER_KEY.get(name)
    default = f"The default of the topics' `{dotted(topic_key)}`." if topic_key else ""
    said = (_docstrings(each).get(name) for each in model.__mro__ if issubclass(each, ConfigModel))
    return next(filter(None, said), default).replace("|", "\\|")


@cache
def _docstrings(model: type[ConfigModel]) -> dict[str, str]:
    """Those of the model's own keys, each of which stands below its key."""
    (found,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(found, ast.ClassDef)
    return {
        ast.unparse(key.target): " ".join(str(text.value.value).split())
        for key, text in pairwise(found.body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
