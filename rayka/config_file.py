"""A file of YAML as plain values; a key that is given twice is an error, where YAML's readers take the last one."""

from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A `SafeLoader` that refuses a key that its mapping has already."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = key.tag, str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice; keep one", key.start_mark
                )
            seen.add(name)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: str | Path) -> Any:
    """What is in the file. Raises OSError, UnicodeDecodeError, yaml.YAMLError."""
    return yaml.load(Path(path).read_text(), _Loader)
