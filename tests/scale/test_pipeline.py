"""Pipeline parallel: gradients of every parameter beside those of one process, files, stages, and what is refused."""

import itertools
import json
import random
import runpy
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import archwright
from archwright import checkpoint
from archwright.model.build import build
from archwright.runs import RunFolder
from archwright.scale.checks import check_layout, dropouts
from archwright.scale.stages import stage_runs
from archwright.spec.errors import UserError
from archwright.spec.read import load, load_run
from bench.scale import Case, environment, torchrun
from tests.scale.gradients import Grid, of_group, of_one
from tests.scale.together import layout_asked, trained
from tests.sentences import Sentences, lines_of
from tests.tiny import ROOT, WORDS, tiny_run, tiny_words, write_text

ROWS = {
    "a table for both ends, one for all layers, documents": (
        *("textbook", "model.feedforward.kind=gelu", "model.position.kind=t5"),
        *("data.packing=document_mask", "grad_accum_steps=2"),
        "machine.activation_checkpointing=full",
    ),
    "experts that are balanced, numbers of activations": (
        *("mixtral-8x7b", "model.feedforward.balance_loss=1", "grad_accum_steps=4"),
        *("model.feedforward.router_z_loss=0.1", "model.feedforward.expert.kind=xielu"),
        *("machine.loss=chunked", "machine.activation_checkpointing=selective"),
    ),
    "layers that come again": ("albert-base", "grad_accum_steps=2"),
}
"""What several stages hold, what is minimised in others than the last, and what layers know of the rows."""
TWO: tuple[Grid, ...] = (
    (1, 1, 1, True, 1, 1, 2, "1f1b"),
    (1, 1, 1, True, 1, 1, 2, "interleaved_1f1b"),
)
FOUR: tuple[Grid, ...] = (
    (1, 2, 1, True, 1, 1, 2, "1f1b"),
    (2, 1, 1, True, 1, 1, 2, "interleaved_1f1b"),
    (1, 1, 2, True, 1, 1, 2, "1f1b"),
    (1, 1, 1, True, 2, 1, 2, "1f1b"),
    (1, 2, 1, True, 1, 2, 2, "1f1b"),
    (1, 2, 1, True, 1, 1, 2, "interleaved_1f1b"),
    (1, 1, 2, True, 1, 1, 2, "interleaved_1f1b"),
    (1, 1, 1, True, 2, 1, 2, "interleaved_1f1b"),
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder, dice, words = tmp_path_factory.mktemp("documents"), random.Random(1), WORDS.split()
    for i in range(300):
        text = " ".join(dice.choice(words) for _ in range(dice.randint(2, 12)))
        (folder / f"{i:03}.txt").write_text(text + "\n", encoding="utf-8")
    return {name: Case(name, words, str(folder)) for name, words in ROWS.items()}


@pytest.fixture(scope="module")
def by_two(rows: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return of_group(2, rows, TWO, tmp_path_factory.mktemp("gradients") / "two")


@pytest.fixture(scope="module")
def by_four(rows: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    few, out = dict(itertools.islice(rows.items(), 2)), tmp_path_factory.mktemp("gradients")
    return of_group(4, few, FOUR, out / "four")


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_gradients_are_those_of_one_process(
    name: str, rows: dict[str, Case], by_two: dict[str, Tensor]
) -> None:
    assert_gradients(name, rows[name], by_two, TWO)


@pytest.mark.release
@pytest.mark.parametrize("name", [*ROWS][:2])
def test_gradients_beside_shards_replicas_and_other_groups(
    name: str, rows: dict[str, Case], by_four: dict[str, Tensor]
) -> None:
    assert_gradients(name, rows[name], by_four, FOUR)


def assert_gradients(
    name: str, row: Case, found: dict[str, Tensor], grids: tuple[Grid, ...]
) -> None:
    for i, expected in enumerate(of_one(row)):
        for grid in grids:
            atol = 2e-5 * float(expected.abs().max()) + 2e-8
            own = found[f"{name}/{json.dumps(grid)}/{i}"]
            torch.testing.assert_close(own, expected, rtol=0, atol=atol, msg=f"{grid}, {i}")


class StopHere(Exception):  # noqa: N818
    """Ends a run in the middle."""


@pytest.mark.release
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_one_process_begins_a_pipeline_goes_on_and_one_ends(optimizer: str, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 400)
    words = (
        *("model.num_layers=3", "model.head.tied=true", "grad_accum_steps=2"),
        *("budget=12steps", "checkpoint.every=4", "checkpoint.keep=9", "evaluate.every=6"),
        *("evaluate.max_tokens=900", "evaluate.final_max_tokens=900", "data.packing=document_mask"),
        *(f"optimizer.kind={optimizer}", "scale.pipeline=2"),
    )
    alone = tiny_run(text, *words[:-1])
    whole = archwright.train(alone, out=tmp_path / "whole", quiet=True).folder

    def stop(record: dict[str, object]) -> None:
        if record["step"] == 5:
            raise StopHere

    path = tmp_path / "shared"
    with pytest.raises(StopHere):
        archwright.train(alone, out=path, quiet=True, on_step=stop)
    command = [*torchrun(2), "-m", "archwright", *tiny_words(text, *words)]
    subprocess.run(
        [*command, "--out", str(path), "--quiet"], cwd=ROOT, env=environment(), check=True
    )
    shared = RunFolder(path)
    assert shared.finished
    assert "2 processes" in " ".join(str(record.get("text")) for record in shared.metrics())
    names = {file.name for file in (path / "checkpoints" / "step-8").iterdir()}
    assert {f"model-0000{number}-of-00002.safetensors" for number in (1, 2)} <= names
    assert_close(shared, whole)
    shared.truncate_to(8)
    shared.model_file.unlink()
    archwright.resume(shared, quiet=True)
    assert_close(shared, whole)


def assert_close(folder: RunFolder, other: RunFolder) -> None:
    ours, theirs = (checkpoint.read_model(f.model_file) for f in (folder, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=5e-5)
    for kind, key in (("train", "loss"), ("train", "grad_norm"), ("eval", "nats_per_token")):
        found, expected = (
            [r[key] for r in f.metrics() if r["kind"] == kind] for f in (folder, other)
        )
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_stages_are_as_even_as_can_be(num_stages: int) -> None:
    """Beside all ways to cut the layers."""
    spec = load("modern").override(
        *("dim=16", "attention.num_heads=2", "attention.num_kv_heads=1", "num_layers=7"),
        *("vocab_size=300", 'layers={"cycle" = ["default", "wide", "default"]}'),
        'layer_kinds={"wide" = {"feedforward" = {"hidden_dim" = 96}}}',
    )
    model = build(spec, device="meta")
    layers, head = [*model.stack], sum(p.numel() for p in model.head.parameters())

    def largest(runs: list[list[torch.nn.Module]]) -> int:
        sizes = [sum(p.numel() for layer in run for p in layer.parameters()) for run in runs]
        return max(*sizes[:-1], sizes[-1] + head, 0)

    runs = stage_runs(model, num_stages)
    assert [layer for run in runs for layer in run] == layers
    assert all(runs)
    ways = itertools.combinations(range(1, len(layers)), num_stages - 1)
    cuts = ([*zip((0, *way), (*way, len(layers)), strict=True)] for way in ways)
    assert largest([[*run] for run in runs]) == min(
        largest([[*layers[start:end]] for start, end in cut]) for cut in cuts
    )


@pytest.mark.parametrize("words", lines_of("layouts.pipeline"))
def test_what_is_no_pipeline_is_refused(words: str, sentences: Sentences) -> None:
    name, *changes = words.split()
    run = load_run(name).override("batch_size=24", "grad_accum_steps=4").override(*changes)
    run, layout = run.override(*(f"{path}=0" for path, _ in dropouts(run))), layout_asked(run)
    check_layout(run, layout._replace(pipeline=1, replicate=2))
    with pytest.raises(UserError) as error:
        check_layout(run, layout)
    sentences.check("layouts.pipeline", words, error.value.lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "word", "scale"),
    [
        ("hyper_connections", "model.residual.kind=hyper", "scale.pipeline"),
        ("hyper_connections", "model.residual.kind=hyper", "scale.tensor"),
        ("value_residual", "model.attention.kind=value_residual", "scale.tensor"),
    ],
)
def test_two_train_several_streams_and_values_across_layers_as_one(
    part: str, word: str, scale: str, tmp_path: Path
) -> None:
    text = write_text(tmp_path / "text.txt", 100)
    shape = ("model.num_layers=2", word, "budget=4steps", "evaluate.final_max_tokens=50")
    words = (
        *(w for w in tiny_words(text, *shape) if not w.startswith("model.attention.num_kv")),
        "grad_accum_steps=2",
        *("--parts", str(ROOT / "tests" / "outside" / f"{part}.py")),
    )
    runs = [
        trained(number, tmp_path / str(number), *words, f"{scale}={number}") for number in (1, 2)
    ]
    one, two = ([r["loss"] for r in run.metrics() if r["kind"] == "train"] for run in runs)
    assert len(one) == 4
    assert two == pytest.approx(one, abs=5e-6)


@pytest.mark.usefixtures("visitors")
def test_values_do_not_go_from_stage_to_stage() -> None:
    runpy.run_path(str(ROOT / "tests" / "outside" / "value_residual.py"), run_name="outside")
    run = load_run("modern").override(
        *("model.dim=32", "model.num_layers=4", "model.attention.kind=value_residual"),
        *("batch_size=24", "grad_accum_steps=4", "scale.pipeline=2"),
    )
    with pytest.raises(UserError) as error:
        check_layout(run, layout_asked(run))
    assert error.value.lines == (
        'model: reads "value" of layer 1, in another stage; expected another, or scale.pipeline = 1',
    )
