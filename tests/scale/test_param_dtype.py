"""Weights of layers that are gathered in bfloat16: losses, bytes, files, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.scale.checks import check_layout
from archwright.scale.launch import Launch
from archwright.scale.layout import Layout, layout_of
from archwright.spec.errors import UserError
from archwright.spec.scale import ScaleSpec
from bench.scale import Case
from bench.scale import trained as trained_alone
from tests.scale.together import LOSSES, TWELVE_STEPS, started, trained, values, without_dropout
from tests.tiny import tiny_run, tiny_words

STEPS = 6
NARROW = "machine.precision=bf16"
ROWS = {
    "modern": ("modern", NARROW),
    "experts, computed again, parts": (
        *("mixtral-8x7b", "model.feedforward.router_z_loss=0.1", "grad_accum_steps=2", NARROW),
        "machine.activation_checkpointing=selective",
    ),
}
TWO = Layout(1, 2, 2, param_dtype="bfloat16")


@pytest.fixture(scope="module")
def rows(text: Path) -> dict[str, Case]:
    return {name: Case(name, words, str(text)) for name, words in ROWS.items()}


@pytest.fixture(scope="module")
def together(
    rows: dict[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    out = tmp_path_factory.mktemp("narrow") / "found.json"
    question = json.dumps({"cases": rows, "steps": STEPS, "out": str(out)})
    done = started(2, "-m", "tests.scale.narrow", question)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(out.read_text("utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_losses_are_about_those_of_one_process(
    name: str, rows: dict[str, Case], together: dict[str, dict[str, Any]]
) -> None:
    alone = [loss for loss, _ in trained_alone(rows[name], STEPS)]
    assert alone[-1] < alone[0] - 0.1
    for dtype in ("float32", "bfloat16"):
        assert together[f"{name}/{dtype}"]["losses"] == pytest.approx(alone, abs=1e-2)
    assert together[f"{name}/float32"]["losses"] != together[f"{name}/bfloat16"]["losses"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_layers_are_gathered_in_half_the_bytes(
    name: str, together: dict[str, dict[str, Any]]
) -> None:
    wide, narrow = (together[f"{name}/{dtype}"] for dtype in ("float32", "bfloat16"))
    assert wide["bytes"].keys() == {"float32"}
    around, of_layers = narrow["bytes"]["float32"], narrow["bytes"]["bfloat16"]
    assert wide["bytes"]["float32"] == around + 2 * of_layers
    assert of_layers > 0
    assert wide["kept"] == narrow["kept"] == ["torch.float32"]


@pytest.mark.slow
def test_files_are_float32_and_one_process_goes_on_with_them(text: Path, tmp_path: Path) -> None:
    words = *TWELVE_STEPS, NARROW
    scale = ("scale.shard=2", "scale.param_dtype=bfloat16")
    shared = trained(2, tmp_path / "shared", *tiny_words(text, *words, *scale))
    whole = archwright.train(tiny_run(text, *words), out=tmp_path / "whole", quiet=True).folder
    for kind, key in LOSSES:
        assert values(shared, kind, key) == pytest.approx(values(whole, kind, key), abs=1e-2)
    weights = checkpoint.read_model(shared.model_file)
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert any((w != w.bfloat16()).any() for w in weights.values())


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_other_precisions_are_refused(precision: str) -> None:
    run = without_dropout("modern", f"machine.precision={precision}")
    line = rf'machine.precision: found "{precision}", .* expected "bf16"'
    with pytest.raises(UserError, match=line):
        check_layout(run, TWO)
    check_layout(run, TWO._replace(param_dtype="float32"))
    check_layout(run.override("machine.precision=bf16"), TWO)


@pytest.mark.parametrize("name", ["albert-base", "reformer"])
def test_layers_that_are_gathered_with_all_else_are_refused(name: str) -> None:
    run = without_dropout(name, "machine.precision=bf16")
    with pytest.raises(UserError, match=r'scale.param_dtype: found "bfloat16", but no layer'):
        check_layout(run, TWO)


@pytest.mark.parametrize(
    ("asked", "precision", "dtype"),
    [
        ("auto", "bf16", "bfloat16"),
        ("auto", "fp32", "float32"),
        ("float32", "bf16", "float32"),
    ],
)
def test_the_dtype_follows_the_precision(asked: str, precision: str, dtype: str) -> None:
    layout = layout_of(ScaleSpec.model_validate({"param_dtype": asked}), Launch(0, 2, 0, 2))
    assert layout.with_precision(precision).param_dtype == dtype


def test_pipelines_keep_gathered_weights_unless_asked() -> None:
    assert Layout(1, 2).frees_weights
    assert not Layout(pipeline=2).frees_weights
    assert Layout(pipeline=2, reshard=True).frees_weights
