"""JSON schema of preset files, for editors that check and complete them."""

from typing import Any

from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec

BASE = {"type": "string", "description": "A preset or a file, from which this one differs."}


def file_schema(cls: type[ModelSpec] | type[RunSpec] | type[StudySpec]) -> dict[str, Any]:
    """Return the JSON schema of a file that describes a model, a run or a study, over all choices there are.

    It is that of the spec, with what only files have: `base`, and a run's `model` given by name.
    """
    schema = cls.model_json_schema()
    if cls is StudySpec:
        return schema
    definitions = schema.setdefault("$defs", {})
    model = schema if cls is ModelSpec else definitions["ModelSpec"]
    model["properties"]["base"] = BASE
    if cls is RunSpec:
        table = schema["properties"]["model"]
        schema["properties"]["model"] = {"anyOf": [{"type": "string"}, table]}
    layer = LayerSpec.model_json_schema()
    definitions |= layer.pop("$defs", {}) | {"LayerSpec": layer}
    kinds = model["properties"]["layer_kinds"]
    kinds["additionalProperties"] = {"$ref": "#/$defs/LayerSpec"}
    return schema
