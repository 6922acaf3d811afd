"""The table of choices: complete, and marked exactly where a choice is not the default."""

from typing import Any

import pytest

from archwright.reporting import choices
from archwright.reporting.document import Row
from archwright.spec.model_spec import ModelSpec
from archwright.spec.overrides import flatten
from archwright.spec.run_spec import RunSpec


def marks(spec: ModelSpec) -> dict[str, str]:
    """Return the marks of a resolved spec's rows, by path."""
    return {row.cells[0]: row.mark for row in choices.model_rows(spec.resolved()) if row.mark}


def test_the_default_model_has_no_marks() -> None:
    assert marks(ModelSpec()) == {}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("dim=128", {"dim": "default: 512"}),
        ("norm.kind=layer", {"norm": "default: rms"}),
        ("norm.eps=1e-6", {"norm": "default eps: 1e-05"}),
        ("attention.num_kv_heads=2", {"attention": "default num_kv_heads: auto"}),
        ("attention.num_heads=16", {"attention": "default head_dim: auto"}),
        ("feedforward.hidden_dim=1024", {"feedforward": "default hidden_dim: auto"}),
        ("attention.qk_norm.kind=rms", {"attention.qk_norm": "default: none"}),
        ("head.tied=true", {"head": "default tied: no"}),
        ("head.tied=false", {}),
    ],
)
def test_what_differs_is_marked(override: str, expected: dict[str, str]) -> None:
    assert marks(ModelSpec().override(override)) == expected


def test_numbers_that_auto_leads_to_are_not_marked() -> None:
    spec = ModelSpec().override("dim=256", "attention.head_dim=64", "attention.num_heads=4")
    assert set(marks(spec)) == {"dim"}


def test_a_number_whose_auto_would_fit_nothing_is_marked() -> None:
    """With heads of 64, which auto takes, a width of 64 has one head, too few for two key-value heads."""
    spec = ModelSpec().override("dim=64", "attention.num_heads=4", "attention.num_kv_heads=2")
    assert {"dim", "attention"} <= marks(spec).keys()


def test_every_value_of_the_model_is_in_the_table() -> None:
    spec = ModelSpec().resolved()
    said = " ".join(" ".join(row.cells[:3]) for row in choices.model_rows(spec))
    values = flatten(spec.model_dump(exclude={"name", "source", "sources", "layers"}))
    assert len(values) > 20
    for path, value in values.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert f"{value:g}" in said, path
        elif isinstance(value, str):
            assert value in said, path


def test_a_run_is_told_beside_its_defaults() -> None:
    run = RunSpec().override("optimizer.lr=1e-3", "batch_size=8")
    rows: dict[str, Row] = {r.cells[0]: r for r in choices.spec_rows(run, leave_out=("model",))}
    marked: dict[str, Any] = {path: row.mark for path, row in rows.items() if row.mark}
    assert set(marked) == {"optimizer", "batch_size"}
    assert "model" not in rows
