"""JSON schema of preset files, for editors that check and complete them."""

from typing import Any

from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec

BASE = {"type": "string", "description": "A preset or a file, from which this one differs."}


def file_schema(cls: type[ModelSpec] | type[RunSpec] | type[StudySpec]) -> dict[str, Any]:
    """Return the JSON schema of a model's, run's or study's file, over all registered choices.

    In addition to the spec's schema, files have `base`, a model's `objective`, the default of its runs, and a run's
    `model` given by name.
    """
    schema: dict[str, Any] = cls.model_json_schema()
    if cls is StudySpec:
        return schema
    definitions = schema.setdefault("$defs", {})
    model = schema if cls is ModelSpec else definitions["ModelSpec"]
    model["properties"]["base"] = BASE
    if cls is ModelSpec:
        model["properties"]["objective"] = RunSpec.model_json_schema()["properties"]["objective"]
    if cls is RunSpec:
        table = schema["properties"]["model"]
        schema["properties"]["model"] = {"anyOf": [{"type": "string"}, table]}
    layer = LayerSpec.model_json_schema()
    definitions |= layer.pop("$defs", {}) | {"LayerSpec": layer}
    kinds = model["properties"]["layer_kinds"]
    kinds["additionalProperties"] = {"$ref": "#/$defs/LayerSpec"}
    shared = dict(definitions)
    for name in definitions:
        shared[name] = _shared(definitions[name], shared, name)
    found: dict[str, Any] = _shared(schema | {"$defs": {}}, shared, schema["title"])
    return found | {"$defs": dict(sorted(shared.items()))}


def _shared(schema: object, shared: dict[str, Any], own: str = "") -> Any:
    """Replace tables repeated inside a schema by references to `shared`."""
    if isinstance(schema, list):
        return [_shared(inner, shared) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _shared(inner, shared) for key, inner in schema.items()}
    name = str(found.get("title"))
    if found.get("type") != "object" or "properties" not in found or name == own:
        return found
    is_first = shared.setdefault(name, found) == found
    return {"$ref": f"#/$defs/{name}"} if is_first else found
