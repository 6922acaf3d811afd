"""The coordinate check: growths that are known, and models that muP makes flat."""

import math
from pathlib import Path

import pytest

from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training.coordinate_check import SHARE, Growth, coordinate_check
from tests.tiny import tiny_run

GQA = ("model.attention.num_heads=4", "model.attention.num_kv_heads=2")
MUP = (
    "model.init.kind=mup",
    "model.attention.scale.kind=inverse",
    "model.attention.scale.numerator=4",
)


def growths(run: RunSpec, widths: tuple[int, ...], seeds: int = 2) -> dict[tuple[int, str], Growth]:
    return {(g.steps, g.part): g for g in coordinate_check(run, widths, seeds=seeds)}


@pytest.mark.parametrize(
    ("optimizer", "growth", "mup"),
    [("adamw", 4.0, False), ("muon", 2.0, False), ("adamw", 1.0, True), ("muon", 1.0, True)],
)
def test_growths_over_a_fourfold_width(
    text: Path, optimizer: str, growth: float, mup: bool
) -> None:
    """The first update of a matrix has equal entries with AdamW, so its output grows with the width m; with Muon a
    spectral norm of sqrt(max(d_out, d_in)). muP divides them by m and sqrt(m). The head is AdamW's with both."""
    words = (f"optimizer.kind={optimizer}", *GQA, *(MUP if mup else ()))
    found = growths(tiny_run(text, *words), (32, 128))
    assert {part for _, part in found} == {
        *("embedding", "layers.0.attention", "layers.0.feedforward", "head")
    }
    assert found[1, "embedding"].growth == pytest.approx(1, abs=0.01)
    assert found[1, "layers.0.feedforward"].growth == pytest.approx(growth, rel=0.25)
    for part in ("layers.0.attention", "layers.0.feedforward"):
        assert [found[steps, part].is_flat for steps in (1, 10)] == [mup, mup], part
    assert found[1, "head"].growth == pytest.approx(1 if mup else 4, rel=0.25)


def test_the_embedding_moves_by_the_learning_rate(text: Path) -> None:
    """Adam's first update of a row that a batch has is its rate, whatever the gradient."""
    run = tiny_run(text, "optimizer.lr=0.01", "optimizer.weight_decay=0")
    change = growths(run, (32, 64))[1, "embedding"]
    assert change.changes == pytest.approx({32: 0.01 * SHARE, 64: 0.01 * SHARE}, rel=0.01)


@pytest.mark.parametrize(
    "hidden",
    [
        ("model.feedforward.hidden_dim=96",),
        ("model.feedforward.ratio=3",),
        (
            "model.layer_kinds.other.feedforward.hidden_dim=96",
            'model.layers.cycle=["other"]',
        ),
    ],
)
def test_hidden_layers_keep_their_ratio(
    text: Path, monkeypatch: pytest.MonkeyPatch, hidden: tuple[str, ...]
) -> None:
    seen: list[RunSpec] = []
    monkeypatch.setattr(
        "archwright.training.coordinate_check._changes", lambda run, _: seen.append(run) or ()
    )
    run = tiny_run(text, *hidden, "seed=7")
    coordinate_check(run, (64, 32), seeds=2)
    shapes = [(r.model.dim, r.model.layer(0).feedforward.width(r.model.dim), r.seed) for r in seen]
    assert shapes == [(64, 192, 7), (64, 192, 8), (32, 96, 7), (32, 96, 8)]
    (narrow, _) = seen[2:]
    assert narrow.model.resolved() == run.model.resolved()
    assert narrow.model_copy(update={"model": run.model}) == run


def test_growth_by_hand(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {128: [1.0, 2.0], 256: [1.0, 1.0], 512: [1.2, 2.4 * math.e]}
    monkeypatch.setattr(
        "archwright.training.coordinate_check._changes",
        lambda run, _: [((1, "head"), known[run.model.dim][run.seed])],
    )
    (growth,) = coordinate_check(tiny_run(text), (256, 512, 128), seeds=2)
    root = math.sqrt(math.e)
    assert growth.changes == pytest.approx(
        {128: math.sqrt(2), 256: 1, 512: 1.2 * math.sqrt(2) * root}
    )
    # The logarithms of both seeds' growths are 1 apart: their standard error is 1/2.
    assert (growth.growth, growth.error) == pytest.approx((1.2 * root, 0.5))
    flat = [growth._replace(growth=g).is_flat for g in (0.79, 0.81, 1, 1.24, 1.26, math.nan)]
    assert flat == [False, True, True, True, False, False]


def test_a_part_that_does_not_move_is_refused(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archwright.training.coordinate_check.SHARE", 0.0)
    with pytest.raises(
        UserError, match=r"embedding: found a change of 0\.0; expected a part that moves"
    ):
        coordinate_check(tiny_run(text), (32, 64))
