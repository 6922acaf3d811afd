"""Whole runs of a tiny model: what they leave, learn, and refuse."""

import json
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.machine import peaks
from archwright.model.build import build
from archwright.planning.cost import run_flops_per_token
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training import train as train_room
from archwright.training.loop import DivergedError
from archwright.training.train import Stopped
from tests.tiny import tiny_run
from tests.training.whole import TIMES, Died, at_step, die, leave_out, timeless, train

FIELDS = {
    "train": {"loss", "z_loss", "grad_norm", "lr", *TIMES},
    "eval": {
        *("nats_per_token", "perplexity", "bits_per_byte", "num_tokens", "num_bytes", "seconds")
    },
    "baseline": {"name", "bits_per_byte", "num_bytes", "seconds"},
    "event": {"name", "text", "seconds"},
}


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes long and is not looked at."""
    if "nothing_left_out" not in request.fixturenames:
        leave_out(monkeypatch)


@pytest.mark.slow
def test_what_a_run_leaves(longer: RunSpec, tmp_path: Path, nothing_left_out: None) -> None:
    folder = train(longer, tmp_path / "run")
    names = {path.name for path in folder.path.iterdir()}
    assert names == {
        *("spec.toml", "requested.toml", "environment.json", "metrics.jsonl", "model.safetensors"),
        *("samples.txt", "report.html", "tokenizer", "checkpoints", "lock"),
    }
    assert folder.finished
    assert "auto" not in folder.spec_file.read_text()
    assert sorted(folder.checkpoints()) == [9, 12]
    assert len(folder.samples()) > 10
    assert folder.report_file.stat().st_size > 100_000
    weights = checkpoint.read_model(folder.model_file)
    last = checkpoint.read_model(folder.checkpoints()[12] / "model.safetensors")
    assert weights.keys() == last.keys()
    assert all(torch.equal(weights[name], last[name]) for name in weights)


@pytest.mark.slow
def test_metrics_are_complete(longer: RunSpec, tmp_path: Path) -> None:
    folder = train(longer.override("z_loss=1e-4"), tmp_path / "run")
    records = folder.metrics()
    for record in records:
        assert record.keys() == FIELDS[record["kind"]] | {"kind", "step", "tokens", "cpu_seconds"}
        numbers = [value for value in record.values() if not isinstance(value, str)]
        assert all(value is not None and math.isfinite(value) for value in numbers)
        assert record["tokens"] == record["step"] * 4 * 32
    assert [r["step"] for r in records if r["kind"] == "train"] == list(range(1, 13))
    assert [r["step"] for r in records if r["kind"] == "eval"] == [5, 10, 12]
    assert [r["name"] for r in records if r["kind"] == "baseline"] == ["gzip -9", "xz -9e"]
    assert [r["name"] for r in records if r["kind"] == "event"] == ["started", "finished"]
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds)
    assert all(r["z_loss"] > 0 for r in records if r["kind"] == "train")
    last = [r for r in records if r["kind"] == "eval"][-1]
    assert {r["num_bytes"] for r in records if r["kind"] == "baseline"} == {last["num_bytes"]}


@pytest.mark.slow
def test_the_environment_says_where_and_how(
    longer: RunSpec, tmp_path: Path, nothing_left_out: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "cache"))
    # Peaks of a busy machine are not recorded.
    monkeypatch.setattr(peaks, "measure_peak", lambda *_: peaks.Peak(1e9, quiet=True))
    run = archwright.train(longer, out=tmp_path / "run", quiet=True)
    found = run.folder.environment()
    assert found["num_parameters"] == run.model.num_parameters()
    assert found["torch"] == torch.__version__
    assert found["peak_flops"]["fp32"] == 1e9
    assert found["flops_per_token"] > 6 * (
        found["num_parameters"] - run.model.embedding.weight.numel()
    )
    assert found["decisions"]["num_steps"]["value"] == 12
    assert found["data"]["train"]["num_tokens"] > found["data"]["held_out"]["num_tokens"] > 0


@pytest.mark.slow
def test_it_returns_the_trained_model(longer: RunSpec, tmp_path: Path) -> None:
    run = archwright.train(longer, out=tmp_path / "run", quiet=True)
    weights = checkpoint.read_model(run.folder.model_file)
    assert all(torch.equal(t, weights[name]) for name, t in run.model.state_dict().items())
    assert not run.model.training
    assert str(archwright.generate(run, "the", max_new_tokens=5)).startswith("the")


@pytest.mark.slow
def test_a_model_alone_gets_a_run(text: Path, tmp_path: Path) -> None:
    model = tiny_run(text).model
    changes = (f"data.text={text}", "data.tokenizer.kind=bytes", "budget=1steps", "batch_size=2")
    quick = ("machine.kernel=sdpa", "machine.precision=fp32", "machine.threads=1")
    run = archwright.train(model, *changes, *quick, quiet=True)
    assert run.folder.path == Path("runs/modern")
    assert run.folder.finished


# Mistakes ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("data.text=missing.txt", r'data\.text: no file or folder "missing.txt"'),
        ('data.tokenizer.special_tokens=[""]', "a special token cannot be empty"),
        ("model.context_length=100000", "text is too short"),
        ("init.from=nowhere", "nowhere is no folder"),
        ("batch_size=1000000000", "lower batch_size"),
        ("grad_accum_steps=5", "grad_accum_steps: found 5; expected at most batch_size = 4"),
        ("evaluate.stride=33", r"evaluate\.stride: found 33; expected at most"),
        ("model.attention.num_kv_heads=3", r"^model\.attention\.num_kv_heads: found 3"),
    ],
)
def test_a_mistake_leaves_nothing_behind(
    run: RunSpec, tmp_path: Path, change: str, line: str
) -> None:
    out = tmp_path / "runs" / "here"
    with pytest.raises(UserError, match=line):
        train(run.override(change), out)
    assert not (tmp_path / "runs").exists()
    assert train(run, out).finished  # and the corrected command works


def test_a_mistake_leaves_what_was_there(run: RunSpec, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    with pytest.raises(UserError):
        train(run.override("data.text=missing.txt"), out)
    assert list(out.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_died_before_it_began_makes_place(
    run: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "_discard", lambda *_: None)
        patch.setattr(train_room, "resolve", die)
        with pytest.raises(Died):
            train(run, tmp_path / "run")
    assert (tmp_path / "run" / "spec.toml").exists()
    other = run.override("seed=9")
    assert train(other, tmp_path / "run").spec.seed == 9


@pytest.mark.slow
def test_a_run_that_trained_does_not_make_place(longer: RunSpec, tmp_path: Path) -> None:
    folder = train(longer, tmp_path / "run")
    before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
    assert archwright.resume(folder.path).folder.path == folder.path  # it is finished
    with pytest.raises(UserError, match=r"holds another run .seed: 0 -> 9"):
        train(longer.override("seed=9"), tmp_path / "run")
    assert {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_a_text_that_changed_is_noticed_when_its_tokens_are_gone(
    longer: RunSpec, text: Path, cache: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 4, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Stopped):
            train(longer, tmp_path / "run")
    kept = text.read_text()
    shutil.rmtree(cache)
    text.write_text(kept + "more\n")
    with pytest.raises(UserError, match="the text or its split has changed since this run began"):
        train(longer, tmp_path / "run")
    text.write_text(kept)
    assert train(longer, tmp_path / "run").finished


def test_a_run_that_diverges_stops(text: Path, tmp_path: Path) -> None:
    run = tiny_run(
        text, "budget=60steps", "checkpoint.every=1", "optimizer.lr=1e30", "max_grad_norm=none"
    )
    run = run.override("schedule.warmup=40", "evaluate.every=100")
    with pytest.raises(DivergedError) as caught:
        train(run, tmp_path / "run")
    line = str(caught.value)
    assert "became" in line
    assert "Lower optimizer.lr" in line
    folder = RunFolder.open(tmp_path / "run")
    kept = max(folder.checkpoints())
    assert f"the checkpoint of step {kept} is kept" in line
    weights = checkpoint.read_model(folder.checkpoints()[kept] / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert folder.metrics()[-1]["text"] == line
    assert folder.report_file.exists()
    assert json.loads(folder.metrics_file.read_text().splitlines()[-2])["loss"] is not None


# Learning ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_memorises_a_small_text(tmp_path: Path, optimizer: str) -> None:
    words = "In the beginning was the word, and the word was written by a very small model."
    (tmp_path / "word.txt").write_text(words)
    (tmp_path / "other.txt").write_text(words)  # to hold out what is to be memorised
    run = tiny_run(
        tmp_path / "word.txt",
        f"data.held_out={tmp_path / 'other.txt'}",
        "budget=100steps",
        f"optimizer.kind={optimizer}",
        "optimizer.lr=0.02",
        "model.context_length=78",
        "evaluate.every=1000",
    )
    with pytest.warns(UserWarning, match=r"1 of 1 documents \(100 %\) are also in data.text"):
        trained = archwright.train(run, out=tmp_path / "run", quiet=True)
    assert timeless(trained.folder)[-1]["loss"] < 0.05
    assert timeless(trained.folder, "eval")[-1]["bits_per_byte"] < 0.1
    written = archwright.generate(trained, "In the be", temperature=0.0, max_new_tokens=69)
    assert str(written) == words


@pytest.mark.slow
def test_spikes_are_counted(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archwright.training.loop.is_spike", lambda loss, recent: len(recent) == 3)
    run = tiny_run(text, "budget=5steps", "evaluate.every=100")
    folder = train(run, tmp_path / "run")
    spikes = [r for r in timeless(folder, "event") if r["name"] == "loss_spike"]
    assert [record["step"] for record in spikes] == [4, 5]  # what stands out joins no mean
    loaded = json.loads((folder.checkpoints()[5] / "state.json").read_text())
    assert loaded["state"]["spikes"] == 2


@pytest.mark.parametrize(
    "changes",
    [
        ["budget=1steps"],
        ["budget=1tokens"],
        ["budget=0.01s"],
        ["budget=3steps", "batch_size=5", "grad_accum_steps=3"],
        ["budget=2steps", "data.packing=document_mask", "data.separator=the"],
        ["budget=2steps", "machine.precision=bf16"],
        ["budget=2steps", "schedule.kind=wsd", "optimizer.kind=muon"],
        ["budget=2steps", "model.position.kind=learned", "model.head.tied=true"],
        ["budget=2steps", "machine.compile=block"],
    ],
    ids=lambda changes: ",".join(changes),
)
def test_other_runs_finish(
    text: Path, tmp_path: Path, changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "machine.compile=block" in changes:  # compiling itself takes half a minute
        monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)
    run = tiny_run(text, "evaluate.final_max_tokens=100", *changes)
    folder = train(run, tmp_path / "run")
    assert folder.finished
    assert timeless(folder)[-1]["step"] == folder.spec.machine.num_steps
    counted = folder.environment()["flops_per_token"]
    whole = run_flops_per_token(folder.spec, build(folder.spec.model, device="meta"))
    assert (counted < 0.999 * whole) == (run.data.packing == "document_mask")


def test_a_tiny_held_out_text(text: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("é")
    run = tiny_run(text, f"data.held_out={tmp_path / 'tiny.txt'}", "budget=2steps")
    folder = train(run, tmp_path / "run")
    assert timeless(folder, "eval")[-1]["num_bytes"] == 2


@pytest.mark.slow
def test_half_a_gradient_step_is_a_whole_one(text: Path, tmp_path: Path) -> None:
    """Accumulation, through the whole trainer."""
    few = ("budget=4steps", "evaluate.every=100", "evaluate.final_max_tokens=100")
    losses = [
        [r["loss"] for r in timeless(train(tiny_run(text, *few, more), tmp_path / more))]
        for more in ("grad_accum_steps=1", "grad_accum_steps=2")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# TensorBoard -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tensorboard_gets_what_the_metrics_get(longer: RunSpec, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watched = longer.override("loggers=tensorboard")
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 7, die)
        with pytest.raises(Died):
            train(watched, tmp_path / "run")
    folder = train(watched, tmp_path / "run")
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in losses] == list(range(1, 13))  # none of them twice
    expected = [record["loss"] for record in timeless(folder)]
    assert [value for _, value in losses] == pytest.approx(expected, rel=1e-6)
    assert [event.step for event in events.Scalars("held_out/bits_per_byte")] == [5, 10, 12]


@pytest.mark.slow
def test_without_tensorboard_nothing_is_written(longer: RunSpec, tmp_path: Path) -> None:
    assert not (train(longer, tmp_path / "run").path / "tensorboard").exists()
