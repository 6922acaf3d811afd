"""The JSON schema accepts what reading accepts, checked by a validator that knows nothing of specs."""

import tomllib
from functools import cache
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import given, settings

from archwright.spec.installed import preset_files
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import Norm
from archwright.spec.read import to_toml
from archwright.spec.run_spec import RunSpec
from archwright.spec.schema import file_schema
from tests.strategies import model_specs, run_specs


@cache
def validator(spec: type[ModelSpec | RunSpec]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(file_schema(spec))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [ModelSpec, RunSpec])
def test_it_is_a_schema(spec: type[ModelSpec | RunSpec]) -> None:
    jsonschema.Draft202012Validator.check_schema(validator(spec).schema)


@pytest.mark.slow
@pytest.mark.parametrize(("room", "spec"), [("models", ModelSpec), ("runs", RunSpec)])
def test_it_accepts_the_presets(room: str, spec: type[ModelSpec | RunSpec]) -> None:
    for file in preset_files(room).values():
        validator(spec).validate(tomllib.loads(file.read_text("utf-8")))


@pytest.mark.slow
@settings(max_examples=25)
@given(model_specs(), run_specs())
def test_it_accepts_every_spec(model: ModelSpec, run: RunSpec) -> None:
    validator(ModelSpec).validate(tomllib.loads(to_toml(model)))
    validator(RunSpec).validate(tomllib.loads(to_toml(run)))


@pytest.mark.parametrize(
    "table",
    [
        {"base": "modern", "norm": {"eps": 1e-6}, "attention": {"bias": True, "num_heads": "auto"}},
        {"layer_kinds": {"local": {"attention": {"mask": {"kind": "window", "size": 3}}}}},
    ],
)
def test_it_accepts_what_leaves_its_kind_to_a_base(table: dict[str, Any]) -> None:
    validator(ModelSpec).validate(table)
    validator(RunSpec).validate({"model": table})
    validator(RunSpec).validate({"model": "modern"})


@pytest.mark.parametrize(
    "table",
    [
        {"dmi": 3},
        {"dim": 0},
        {"dim": "big"},
        {"norm": {"kind": "rmz"}},
        {"norm": {"kind": "rms", "bias": True}},
        {"attention": {"bias": "both"}},
        {"attention": {"mask": {"size": 0}}},
        {"layers": {"cycle": []}},
        {"head": {"softcap": 0}},
        {"layer_kinds": {"local": {"norm": {"kind": "rmz"}}}},
    ],
)
def test_it_refuses_what_reading_refuses(table: dict[str, Any]) -> None:
    assert not validator(ModelSpec).is_valid(table)
    assert not validator(RunSpec).is_valid({"model": table})


def test_a_model_s_file_may_have_an_objective() -> None:
    validator(ModelSpec).validate({"objective": {"kind": "masked_tokens", "share": 0.2}})
    assert not validator(ModelSpec).is_valid({"objective": {"kind": "maskedtokens"}})
    assert not validator(RunSpec).is_valid({"model": {"objective": {"kind": "masked_tokens"}}})


@pytest.mark.usefixtures("visitors")
def test_choices_from_outside_are_in_it() -> None:
    class Peri(Norm):
        """Somebody's norm."""

        kind: Literal["peri"] = "peri"
        power: int = 2

    assert not validator(ModelSpec).is_valid({"norm": {"kind": "peri"}})
    schema = jsonschema.Draft202012Validator(file_schema(ModelSpec))
    schema.validate({"norm": {"kind": "peri", "power": 3}})
    assert not schema.is_valid({"norm": {"kind": "peri", "power": "3"}})
