"""Runs trained in one stack: each is what it is alone within rounding, whatever becomes of the others."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from archwright.ensemble.session import Together, reason_alone
from archwright.ensemble.train import train_together
from archwright.machine.decide import environment
from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material, prepare_data
from archwright.training.finalize import finalize_metrics_only
from archwright.training.loop import DivergedError, Loop
from archwright.training.progress import Silent
from archwright.training.resolve import resolve
from archwright.training.session import Session
from archwright.training.train import train_in
from tests.tiny import tiny_run

STEPS = 12


def sessions(run: RunSpec, material: Material) -> list[Session]:
    """Three sessions, each of its own seed and learning rate."""
    runs = [run.override(f"seed={i}", f"optimizer.lr={3e-3 * (i + 1)}") for i in range(3)]
    return [resolve(each, material, Silent())[0] for each in runs]


CHOICES = {
    "plain": (),
    "tied": ("model.head.tied=true",),
    "layer norm, biases": (
        "model.norm.kind=layer",
        "model.attention.bias.query=true",
        "model.attention.qk_norm.kind=rms",
        "model.norm.weight=unit_offset",
    ),
    "blocks, chunks": (
        "machine.kernel=blockwise",
        "machine.loss=chunked",
        "z_loss=1e-3",
        "label_smoothing=0.1",
    ),
    "muon": ("optimizer.kind=muon",),
    "documents": ("data.packing=document_mask", "max_grad_norm=0.1"),
    "sandwich": ("model.residual.kind=sandwich", "model.embedding.dim=16"),
}


@pytest.mark.sampled(full=3)
@pytest.mark.slow
@pytest.mark.parametrize("changes", CHOICES.values(), ids=CHOICES)
def test_each_run_of_a_stack_is_what_it_is_alone(
    text: Path, material: Material, changes: Sequence[str]
) -> None:
    run = tiny_run(text, f"budget={STEPS}steps", *changes)
    assert_alike(run, material, loss=1e-5, weights=1e-4)


@pytest.mark.release
@pytest.mark.slow
def test_in_bfloat16_each_run_is_what_it_is_alone_as_far_as_that_rounds(
    text: Path, material: Material
) -> None:
    """A product is rounded to 8 bits, 4e-3; what is random in that averages out in a loss of 128 tokens."""
    run = tiny_run(text, f"budget={STEPS}steps", "machine.precision=bf16")
    assert_alike(run, material, loss=4e-3, weights=2e-2)


def assert_alike(run: RunSpec, material: Material, loss: float, weights: float) -> None:
    alone, stacked = sessions(run, material), sessions(run, material)
    together = Together(stacked)
    for step in range(STEPS):
        seen = together.gradients(step)
        for one, other, of_other in zip(alone, stacked, seen, strict=True):
            expected, found = one.step(), other.apply_gradients(of_other)
            assert found.loss == pytest.approx(expected.loss, rel=loss)
            assert found.z_loss == pytest.approx(expected.z_loss, rel=loss * 10, abs=1e-12)
            assert found.grad_norm == pytest.approx(expected.grad_norm, rel=loss * 100)
    for one, other in zip(alone, stacked, strict=True):
        for name, value in one.model.state_dict().items():
            found = other.model.state_dict()[name]
            torch.testing.assert_close(found, value, rtol=weights, atol=weights)
    finals = [s.model.state_dict()["embedding.weight"] for s in stacked]
    assert not torch.allclose(finals[0], finals[1], atol=0.1)  # they are not one run thrice


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("model.embedding.dropout=0.1", "dropout"),
        ("grad_accum_steps=2", "cut into parts"),
        ("machine.compile=block", "compiled"),
        ("probes.every=5", "probes"),
        ("data.pairs=synthetic", "several lengths"),
        ("model.attention.sinks=true", "layers.0.attention"),
        ("model.position.kind=learned", "position.table"),
        ("model.position.kind=t5", "table"),
        ("model.feedforward.kind=experts", "feedforward"),
    ],
)
def test_what_is_not_stacked_has_a_reason(
    run: RunSpec, material: Material, change: str, reason: str
) -> None:
    session, _ = resolve(run, material, Silent())
    assert reason_alone(session.run, session.model) == ""
    asked = session.run.override(change)
    model = (
        resolve(run.override(change), material, Silent())[0].model
        if "model" in change
        else session.model
    )
    assert reason in reason_alone(asked, model)


@pytest.fixture
def longer(longer: RunSpec) -> RunSpec:
    return longer.override("model.embedding.dropout=0")


def started(place: Path, run: RunSpec, number: int = 3) -> list[RunFolder]:
    """Return settled folders of runs that differ in seed and rate."""
    found = []
    for i in range(number):
        each = run.override(f"seed={i}", f"optimizer.lr={3e-3 * (i + 1)}")
        folder = RunFolder.create(place / str(i), each)
        material = prepare_data(each, folder)
        session, decisions = resolve(each, material, Silent())
        folder.write_spec(session.run)
        folder.write_environment(
            environment(decisions) | {"flops_per_token": 1.0, "data": material.record()}
        )
        found.append(folder)
    return found


def losses(folder: RunFolder) -> list[float]:
    return [record["loss"] for record in folder.metrics() if record["kind"] == "train"]


@pytest.mark.slow
def test_folders_hold_what_runs_alone_leave(longer: RunSpec, tmp_path: Path) -> None:
    stacked = started(tmp_path / "stacked", longer)
    train_together(stacked, finalize_metrics_only, done=[False] * 3, lost=unexpected)
    for folder, alone in zip(stacked, started(tmp_path / "alone", longer), strict=True):
        train_in(alone, finalize_metrics_only, quiet=True)
        assert folder.finished
        assert not folder.checkpoints_folder.exists()
        assert losses(folder) == pytest.approx(losses(alone), rel=1e-5)
        kinds = [
            [(r["kind"], r["step"], r.get("name")) for r in f.metrics()] for f in (folder, alone)
        ]
        assert kinds[0] == kinds[1]
        assert [r.keys() for r in folder.metrics()] == [r.keys() for r in alone.metrics()]
        evals = [
            [r["nats_per_token"] for r in f.metrics() if r["kind"] == "eval"]
            for f in (folder, alone)
        ]
        assert evals[0] == pytest.approx(evals[1], rel=1e-5)


def unexpected(folder: RunFolder, error: DivergedError) -> None:
    raise error


class Died(BaseException):
    """The process is gone."""


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("after", [3, 8, 11])
def test_a_stack_that_is_cut_off_ends_in_the_same_numbers_bit_for_bit(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    longer = longer.override("checkpoint.every=4")
    whole, cut = (started(tmp_path / name, longer) for name in ("whole", "cut"))
    train_together(whole, finalize_metrics_only, done=[False] * 3, lost=unexpected)
    save, saved = Loop.save, []

    def dying(loop: Loop) -> None:  # in the midst of the saves, where runs differ in what they have
        save(loop)
        saved.append(loop)
        if len(saved) == after // 4 * 3 + 2:
            raise Died

    monkeypatch.setattr(Loop, "save", dying)
    with pytest.raises(Died):
        train_together(cut, finalize_metrics_only, done=[False] * 3, lost=unexpected)
    monkeypatch.undo()
    train_together(cut, finalize_metrics_only, done=[False] * 3, lost=unexpected)
    assert [losses(f) for f in cut] == [losses(f) for f in whole]
    assert [f.metrics()[-2]["nats_per_token"] for f in cut] == [
        f.metrics()[-2]["nats_per_token"] for f in whole
    ]


@pytest.mark.slow
def test_the_page_of_an_earlier_stop_goes(longer: RunSpec, tmp_path: Path) -> None:
    (folder,) = started(tmp_path, longer)[:1]
    folder.report_file.write_text("stopped at step 2")
    train_in(folder, finalize_metrics_only, quiet=True)
    assert folder.finished
    assert not folder.report_file.exists()


@pytest.mark.slow
def test_a_run_that_is_done_keeps_its_place_so_that_no_bit_of_the_others_changes(
    longer: RunSpec, tmp_path: Path
) -> None:
    whole, rest = (started(tmp_path / name, longer) for name in ("whole", "rest"))
    train_together(whole, finalize_metrics_only, done=[False] * 3, lost=unexpected)
    train_together(rest, finalize_metrics_only, done=[False, True, False], lost=unexpected)
    assert [losses(f) for f in rest] == [losses(whole[0]), [], losses(whole[2])]


@pytest.mark.slow
def test_a_run_that_diverges_harms_no_other(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, harmed = (started(tmp_path / name, longer) for name in ("whole", "harmed"))
    train_together(whole, finalize_metrics_only, done=[False] * 3, lost=unexpected)
    gradients = Together.gradients

    def broken(together: Together, step: int) -> object:
        if step == 4:
            with torch.no_grad():
                next(together.sessions[1].model.parameters()).fill_(math.nan)
        return gradients(together, step)

    monkeypatch.setattr(Together, "gradients", broken)
    told: list[RunFolder] = []
    train_together(
        harmed, finalize_metrics_only, done=[False] * 3, lost=lambda folder, _: told.append(folder)
    )
    assert told == [harmed[1]]
    assert not harmed[1].finished
    assert losses(harmed[1]) == losses(whole[1])[:4]
    assert [losses(harmed[i]) for i in (0, 2)] == [losses(whole[i]) for i in (0, 2)]
    assert harmed[0].finished
