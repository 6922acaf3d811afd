"""Mistakes in a file are said at once, one line each."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archwright.spec.choice import Choice
from archwright.spec.errors import UserError, nearest
from archwright.spec.masks import Mask
from archwright.spec.merge import validated
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import Norm
from archwright.spec.read import load
from archwright.spec.residuals import Residual
from archwright.spec.run_spec import RunSpec

WRONG = """
dmi = 64
num_layers = 2.5
context_length = 0
vocab_size = "big"
layers = { cycle = [], prefix = ["a", 3] }

[norm]
kind = "rms"
bias = false

[residual]
kind = "per"

[position]
theta = 1.0
fraction = "half"

[attention]
num_heads = -4
mask = "window"
qk_norm = { kind = 3 }
bias = { query = "yes", keys = true }

[feedforward]
kind = "swiglu"
bias = "both"
dropout = 1.0

[head]
tied = 1
softcap = 0

[layer_kinds.local]
normm = { kind = "rms" }
norm = { eps = -1.0 }
residual = { dropout = 2 }

[layer_kinds.default]
dim = 3
"""

LINES = """\
norm.bias: unknown option; accepted: kind, eps, weight, scale_in.
attention.bias.keys: unknown option; accepted: query, key, value, out. Did you mean "key"?
layer_kinds.default: found the name of the layer that stands outside; expected another
layer_kinds.local.normm: unknown option; accepted: norm, residual, position, attention, recurrence, cross_attention, feedforward. Did you mean "norm"?
layer_kinds.default.dim: unknown option; accepted: norm, residual, position, attention, recurrence, cross_attention, feedforward.
dmi: unknown option; accepted: {fields}. Did you mean "dim"?
residual.kind: found "per"; expected one of {residuals}. Did you mean "pre"?
position.theta: found 1.0; expected more than 1
position.fraction: found "half"; expected a number
attention.num_heads: found -4; expected at least 1 or "auto"
attention.bias.query: found "yes"; expected true or false
attention.qk_norm.kind: found 3; expected one of {norms}
attention.mask: found "window"; expected a table with kind = one of {masks}. Write attention.mask.kind = "window".
feedforward.bias: found "both"; expected true, false or a table
feedforward.dropout: found 1.0; expected less than 1
num_layers: found 2.5; expected a whole number
layers.prefix.1: found 3; expected text
layers.cycle: found []; expected at least 1 of them
vocab_size: found "big"; expected a whole number or "auto"
context_length: found 0; expected at least 1
head.tied: found 1; expected true or false
head.softcap: found 0; expected more than 0 or "none"
"""  # noqa: E501


def kinds(axis: type[Choice]) -> str:
    """Return all kinds of an axis as a message names them."""
    return ", ".join(f'"{kind}"' for kind in sorted(axis.kinds))


def lines_of(values: dict[str, Any], cls: type[ModelSpec] | type[RunSpec] = ModelSpec) -> list[str]:
    with pytest.raises(UserError) as caught:
        validated(cls, values)
    return list(caught.value.lines)


def test_all_mistakes_of_a_file_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(WRONG)
    with pytest.raises(UserError) as caught:
        load(tmp_path / "mine.toml")
    expected = LINES.format(
        fields=", ".join(ModelSpec.model_fields),
        residuals=kinds(Residual),
        masks=kinds(Mask),
        norms=kinds(Norm),
    ).splitlines()
    assert list(caught.value.lines) == [f"mine.toml: {line}" for line in expected]


def test_a_layer_kind_is_judged_beside_a_default_layer_that_is_wrong() -> None:
    """Its own mistakes are said, and what it takes from the wrong axis is not held against it."""
    values = {
        "norm": {"kind": "lyer"},
        "layer_kinds": {"a": {"norm": {"eps": 0.1}, "attention": {"mask": {"kind": "casual"}}}},
    }
    assert lines_of(values) == [
        f'layer_kinds.a.attention.mask.kind: found "casual"; expected one of {kinds(Mask)}. '
        'Did you mean "causal"?',
        f'norm.kind: found "lyer"; expected one of {kinds(Norm)}. Did you mean "layer"?',
    ]


def test_paths_begin_at_the_top_of_a_run() -> None:
    values = {
        "model": {"layer_kinds": {"a": {"norm": {"kind": "rmz"}}}, "encoder": {"kind": "stack", "depth": 3}},
        "optimizer": {"kind": "adamw", "betas": [0.9]},
        "schedule": {"kind": "cosine", "warmup": -1},
        "data": {"text": 3, "tokenizer": {"vocab_size": 10}},
        "init": {"form": "x"},
    }  # fmt: skip
    assert lines_of(values, RunSpec) == [
        f'model.layer_kinds.a.norm.kind: found "rmz"; expected one of {kinds(Norm)}. '
        'Did you mean "rms"?',
        "model.encoder.depth: unknown option; accepted: norm, residual, position, attention, recurrence, "
        "cross_attention, feedforward, num_layers, layer_kinds, layers, kind, dim, "
        "context_length, embeddings, "
        "vocab_size.",
        'init.form: unknown option; accepted: from. Did you mean "from"?',
        "data.text: found 3; expected a list",
        "data.tokenizer.vocab_size: found 10; expected at least 257",
        "optimizer.betas: found [0.9]; expected at least 2 of them",
        'schedule.warmup: found -1; expected at least 1 or "auto" or 0',
    ]


def test_long_and_odd_values_stay_on_one_line() -> None:
    odd, long = lines_of({"num_layers": 'a\n"b"', "dim": "x" * 1000})
    assert odd == r'num_layers: found "a\n\"b\""; expected a whole number'
    assert long == f'dim: found "{"x" * 75}..."; expected a whole number'


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from([*ModelSpec.model_fields, "kind", "eps", "a\nb"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from([*RunSpec.model_fields]), VALUES, max_size=3))
def test_whatever_a_file_holds_is_accepted_or_explained(values: dict[str, Any]) -> None:
    for cls in (RunSpec, ModelSpec):
        assert all(": " in line and "\n" not in line for line in said_of(values, cls))


def said_of(values: dict[str, Any], cls: type[ModelSpec] | type[RunSpec]) -> list[str]:
    try:
        validated(cls, values)
    except UserError as error:
        return [*error.lines] or ["refused without a word"]
    return []


def test_the_nearest_name() -> None:
    assert nearest("num_head", ["dim", "num_heads", "head"]) == ' Did you mean "num_heads"?'
    assert nearest("RMS", ["rms", "layer"]) == ' Did you mean "rms"?'
    assert nearest("zzz", ["rms", "layer"]) == ""
