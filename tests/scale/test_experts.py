"""Expert parallel: gradients of every parameter beside those of one process, steps, files, and what is refused."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import archwright
from archwright import checkpoint
from archwright.runs import RunFolder
from archwright.scale.layout import Layout, check_layout, dropouts
from archwright.spec.errors import UserError
from archwright.spec.read import load_run
from bench.scale import Case, environment, torchrun
from tests.scale.gradients import Grid, of_group, of_one
from tests.tiny import ROOT, tiny_run, tiny_words, write_text

ROWS = {
    "balance, a shared expert, computed again": (
        *("mixtral-8x7b", "model.feedforward.balance_loss=1", "model.feedforward.shared=gated"),
        *("model.feedforward.router_z_loss=0.1", "machine.activation_checkpointing=full"),
    ),
    "biases, numbers for all experts": (
        *("mixtral-8x7b", "model.feedforward.expert.kind=xielu", "grad_accum_steps=2"),
        *("model.feedforward.expert.bias=true", "model.feedforward.out_bias=true"),
        "model.feedforward.expert.hidden_norm.kind=rms",
    ),
    "experts that no token goes through": ("mixtral-8x7b", "model.feedforward.top_k=1"),
}
"""What stands in an expert and beside it. Tokens of the last row are all alike: of two processes, one has none."""
FOUR: tuple[Grid, ...] = (
    (1, 4, 1, True, 1, 2),
    (2, 2, 1, True, 1, 2),
    (1, 2, 1, True, 2, 4),
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("text")
    text, alike = write_text(folder / "text.txt", 400), folder / "alike.txt"
    alike.write_text("a" * 20_000, encoding="utf-8")
    return {
        name: Case(name, words, str(alike if "no token" in name else text))
        for name, words in ROWS.items()
    }


@pytest.fixture(scope="module")
def together(rows: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return of_group(4, rows, FOUR, tmp_path_factory.mktemp("gradients") / "four")


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_gradients_are_those_of_one_process(
    name: str, rows: dict[str, Case], together: dict[str, Tensor]
) -> None:
    alone = of_one(rows[name])
    idle = [not half.any() for g in alone if g.ndim == 3 for half in g.chunk(2)]
    assert any(idle) == ("no token" in name)
    for grid in FOUR:
        for i, expected in enumerate(alone):
            found = together[f"{name}/{json.dumps(grid)}/{i}"]
            atol = 2e-5 * float(expected.abs().max()) + 2e-8
            torch.testing.assert_close(found, expected, rtol=0, atol=atol, msg=f"{grid}, {i}")


@pytest.mark.slow
def test_files_are_those_of_one_process_which_goes_on_with_them(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 400)
    words = (
        *("model.feedforward.kind=experts", "model.feedforward.num_experts=6"),
        *("model.feedforward.capacity=9", "model.feedforward.routing.kind=sigmoid"),
        *("model.feedforward.shared=added", "model.feedforward.selection_bias_update_rate=0.1"),
        *("budget=12steps", "checkpoint.every=6", "checkpoint.keep=9", "evaluate.every=6"),
        *("evaluate.max_tokens=900", "evaluate.final_max_tokens=900", "grad_accum_steps=2"),
        "optimizer.kind=muon",
    )
    whole = archwright.train(tiny_run(text, *words), out=tmp_path / "whole", quiet=True).folder
    command = [*torchrun(2), "-m", "archwright", *tiny_words(text, *words, "scale.expert=2")]
    subprocess.run(
        [*command, "--out", str(tmp_path / "shared"), "--quiet"],
        cwd=ROOT,
        env=environment(),
        check=True,
    )
    shared = RunFolder(tmp_path / "shared")
    assert shared.finished
    assert (shared.spec.scale.shard, shared.spec.scale.expert) == (2, 2)
    assert_close(shared, whole)
    for kind, key in (("train", "loss"), ("train", "grad_norm"), ("eval", "nats_per_token")):
        found, expected = (
            [r[key] for r in folder.metrics() if r["kind"] == kind] for folder in (shared, whole)
        )
        assert found == pytest.approx(expected, rel=1e-5)
    shared.truncate_to(6)
    shared.model_file.unlink()
    archwright.resume(shared, quiet=True)
    assert_close(shared, whole)


def assert_close(folder: RunFolder, other: RunFolder) -> None:
    ours, theirs = (checkpoint.read_model(f.model_file) for f in (folder, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize(
    ("words", "layout", "line"),
    [
        (
            ("mixtral-8x7b", "model.feedforward.num_experts=6"),
            Layout(1, 4, expert=4),
            "model.feedforward.num_experts: found 6; expected a multiple of scale.expert = 4",
        ),
        (
            ("switch-base-8", "model.encoder.layer_kinds.sparse.feedforward.num_experts=6"),
            Layout(1, 4, expert=4),
            "model.encoder.layer_kinds.sparse.feedforward.num_experts: found 6; expected a multiple of "
            "scale.expert = 4",
        ),
        (
            ("modern",),
            Layout(1, 2, expert=2),
            "scale.expert: found 2; expected 1, as no branch of this model has experts to share out",
        ),
        (
            ("mixtral-8x7b",),
            Layout(1, 2, tensor=2, expert=2),
            "scale.expert: found 2 beside scale.tensor = 2; expected one of them to be 1",
        ),
    ],
)
def test_what_processes_cannot_share_is_refused(
    words: tuple[str, ...], layout: Layout, line: str
) -> None:
    name, *changes = words
    run = load_run(name).override("batch_size=8", *changes)
    run = run.override(*(f"{path}=0" for path, _ in dropouts(run)))
    check_layout(run, layout._replace(expert=1))
    with pytest.raises(UserError) as error:
        check_layout(run, layout)
    assert error.value.lines == (line,)
