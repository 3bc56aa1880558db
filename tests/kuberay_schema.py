"""What KubeRay's schema says of the keys that `examples/deploy/kuberay.yaml` uses, as `kuberay_schema.json`.

    python -m tests.kuberay_schema ray.io_rayclusters.yaml

writes that file anew, from the resource definition of a release of KubeRay (`helm-chart/kuberay-operator/crds`; here
v1.7.0), which is near a megabyte. Every other key is refused, as the API server refuses one that it does not know: a
manifest with another key needs this run again. A claim's schema is that of the same claim in a pod's ephemeral volume.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import yaml

PATH = Path(__file__).with_suffix(".json")
MANIFEST = Path(__file__).parent.parent / "examples" / "deploy" / "kuberay.yaml"
_EPHEMERAL = (
    "headGroupSpec",
    "template",
    "spec",
    "volumes",
    "[]",
    "ephemeral",
    "volumeClaimTemplate",
    "spec",
)
_LEFT_OUT = {"description", "format"}


def used_part(schema: dict[str, Any], values: Iterable[Any]) -> dict[str, Any]:
    """The schema of the keys that these values have, which allows no other key. What is required stays so."""
    kept = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    values = list(values)
    if "properties" in schema:
        kept["properties"] = {
            name: used_part(each, [value[name] for value in values if name in value])
            for name, each in schema["properties"].items()
            if any(name in value for value in values)
        }
        kept["additionalProperties"] = False
    if "items" in schema:
        kept["items"] = used_part(schema["items"], (each for value in values for each in value))
    return kept


def _at(schema: dict[str, Any], path: Iterable[str]) -> dict[str, Any]:
    for name in path:
        schema = schema["items"] if name == "[]" else schema["properties"][name]
    return schema


@click.command()
@click.argument("definition", type=click.Path(exists=True, path_type=Path))
def main(definition: Path) -> None:
    """See the module."""
    versions = yaml.safe_load(definition.read_text())["spec"]["versions"]
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1")
    cluster, *claims = yaml.safe_load_all(MANIFEST.read_text())
    claim = _at(schema["properties"]["spec"], _EPHEMERAL)
    found = {
        "RayCluster": used_part(schema, [cluster]),
        "PersistentVolumeClaim": used_part(claim, [each["spec"] for each in claims]),
    }
    PATH.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
