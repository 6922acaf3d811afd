"""No process holds the whole model: what begins, ends and goes back to weights in parts is that of one process."""

from pathlib import Path

import pytest

import archwright
from bench.scale import torchrun
from bench.scale_memory import peaks
from tests.scale.together import TWELVE_STEPS, assert_close, trained, two_train_as_one, values
from tests.tiny import tiny_run, tiny_words

pytestmark = pytest.mark.slow

SCALES = ("scale.shard=2", "scale.tensor=2", "scale.replicate=2")


@pytest.mark.parametrize("scale", SCALES)
def test_a_run_begins_with_the_weights_of_another(scale: str, text: Path, tmp_path: Path) -> None:
    """Some of its tensors, the tied table under its other name; the others are new."""
    even = ("model.attention.num_kv_heads=2", "model.head.tied=true")
    source = archwright.train(
        tiny_run(text, "budget=2steps", "evaluate.final_max_tokens=100", *even),
        out=tmp_path / "source",
        quiet=True,
    ).folder
    begun = (*even, f"init.from={source.path}", "model.attention.qk_norm.kind=rms")
    two_train_as_one(text, tmp_path, scale, *begun)


@pytest.mark.parametrize("scale", [*SCALES, "scale.pipeline=2"])
def test_a_run_that_ends_early_goes_back_to_its_best_weights(
    scale: str, text: Path, tmp_path: Path
) -> None:
    words = (
        *(*TWELVE_STEPS, "budget=40steps", "evaluate.every=2", "early_stop.patience=2"),
        *("optimizer.lr=0.3", "model.attention.num_kv_heads=2"),
    )
    if scale == "scale.pipeline=2":  # which asks for a layer and a part of the batch for each stage
        words += ("model.num_layers=2", "grad_accum_steps=2")
    one = archwright.train(tiny_run(text, *words), out=tmp_path / "one", quiet=True).folder
    two = trained(2, tmp_path / "two", *tiny_words(text, *words, scale))
    losses = values(one, "eval", "nats_per_token")
    assert len(losses) < 20, "it ends early"
    assert losses[-1] < losses[-2], "the last is of the best weights"
    assert values(two, "eval", "nats_per_token") == pytest.approx(losses, rel=1e-3)
    assert_close(two.model_file, one.model_file, atol=1e-3)
    assert not two.best_file.exists()


def test_a_budget_in_time_is_kept_by_two(text: Path, tmp_path: Path) -> None:
    """Its end is timed with weights that are written for that time alone."""
    words = ("budget=6s", "evaluate.max_tokens=300", "evaluate.final_max_tokens=300")
    folder = trained(2, tmp_path / "run", *tiny_words(text, *words))
    assert folder.finished
    assert folder.samples_file.exists()  # a model of few steps may end its text at once
    assert not folder.timed_file.exists()


@pytest.mark.parametrize("scale", ["scale.shard=2", "scale.pipeline=2"])
def test_the_first_process_holds_no_more_than_the_others(
    scale: str, text: Path, tmp_path: Path
) -> None:
    """A model of 100 MB, of which one whole beside its part would show."""
    words = (
        *("model.dim=1024", "model.num_layers=2", "budget=2steps", "checkpoint.every=1"),
        # With few windows to evaluate, one process has most of them, and memory for their activations.
        *("evaluate.max_tokens=100", "evaluate.final_max_tokens=100", "grad_accum_steps=2"),
    )
    command = ("-m", "archwright", *tiny_words(text, *words, scale), "--quiet")
    more = []
    # Beside other work the copy for a checkpoint may meet a step in one process alone; a whole model would each time.
    while len(more) < 3 and min(more, default=1e9) >= 5e7:
        out = str(tmp_path / f"run{len(more)}")
        first, second = peaks([*torchrun(2), *command, "--out", out])
        assert first.anonymous > 3e8, "it was looked at while it trained"
        more.append(first.anonymous - second.anonymous)
    assert min(more) < 5e7
