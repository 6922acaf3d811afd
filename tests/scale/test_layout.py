"""How processes share a run, and what is refused before anything is done."""

import re
import sys
import time
from typing import Literal

import pytest
import torch

from archwright.cli.main import main
from archwright.data.inputs import Batch, Inputs
from archwright.scale.checks import check_layout, dropouts
from archwright.scale.group import check_gpus
from archwright.scale.launch import Launch, awaited, check_launch, is_first, launched
from archwright.scale.layout import ONE, Layout, kept_layout, layout_of, planned_layout
from archwright.scale.processes import OneOf
from archwright.spec.errors import UserError
from archwright.spec.optimizers import Optimizer
from archwright.spec.read import load_run
from archwright.spec.scale import ScaleSpec
from tests.tiny import ROOT

FOUR, EIGHT = Launch(0, 4, 0, 4), Launch(3, 8, 1, 2)
STARTED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
PLACE = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("asked", "launch", "expected"),
    [
        ({}, None, Layout(1, 1)),
        ({"replicate": 1, "shard": 1}, None, Layout(1, 1)),
        ({}, FOUR, Layout(1, 4, 4)),
        ({"replicate": 2}, FOUR, Layout(2, 2, 4)),
        ({"shard": 2}, EIGHT, Layout(4, 2, 2)),
        ({"shard": 1}, FOUR, Layout(4, 1, 4)),
        ({"replicate": 8, "shard": 1}, EIGHT, Layout(8, 1, 2)),
        ({"tensor": 2}, EIGHT, Layout(1, 4, 2, 2)),
        ({"tensor": 2, "shard": 2, "sequence": False}, EIGHT, Layout(2, 2, 2, 2, False)),
        ({"context": 2, "tensor": 2}, EIGHT, Layout(1, 2, 2, 2, context=2)),
        ({"expert": 2}, FOUR, Layout(1, 4, 4, expert=2)),
        ({"expert": 4, "context": 2, "shard": 2}, EIGHT, Layout(2, 2, 2, context=2, expert=4)),
    ],
)
def test_what_is_left_open_follows(
    asked: dict[str, int], launch: Launch | None, expected: Layout
) -> None:
    assert layout_of(ScaleSpec(**asked), launch) == expected


@pytest.mark.parametrize(
    ("asked", "launch", "words"),
    [
        (
            {"shard": 2},
            None,
            "of one process; start 2: torchrun --nproc-per-node 2 --no-python archwright",
        ),
        ({"replicate": 3}, FOUR, "found scale.replicate=3 of 4 processes"),
        ({"replicate": 2, "shard": 4}, FOUR, "found scale.replicate=2 and scale.shard=4 of 4"),
        ({"shard": 8}, FOUR, "found scale.shard=8 of 4 processes"),
        ({"tensor": 8, "expert": 2}, FOUR, "found scale.tensor=8 of 4 processes; expected"),
        ({"tensor": 2}, None, "found scale.tensor=2 of one process; start 2: torchrun"),
        ({"expert": 2}, None, "found scale.expert=2 of one process; start 2: torchrun"),
        ({"shard": 2, "expert": 2}, None, "found scale.shard=2 of one process; start 2: torchrun"),
        (
            {"replicate": 2, "shard": 2, "tensor": 2},
            FOUR,
            "scale.replicate=2, scale.shard=2 and scale.tensor=2 of 4 processes; expected scale.replicate times "
            "scale.shard times scale.tensor to be 4, or 8 processes",
        ),
        (
            {"replicate": 2, "context": 4},
            FOUR,
            "scale.replicate=2 and scale.context=4 of 4 processes; expected scale.replicate times scale.shard times "
            "scale.context to be 4, or a multiple of 8 processes",
        ),
    ],
)
def test_another_number_of_processes_is_refused(
    asked: dict[str, int], launch: Launch | None, words: str
) -> None:
    with pytest.raises(UserError, match="scale: ") as error:
        layout_of(ScaleSpec(**asked), launch)
    assert words in str(error.value)
    size = launch.size if launch else 1
    assert kept_layout(ScaleSpec(**asked), launch)[:2] == (1, size)


@pytest.mark.parametrize(
    ("asked", "launch", "product"),
    [
        ({"expert": 3}, FOUR, 4),
        ({"shard": 2, "context": 2, "expert": 8}, EIGHT, 4),
        ({"shard": 1, "expert": 2}, None, 1),
    ],
)
def test_experts_are_shared_by_processes_of_one_copy(
    asked: dict[str, int], launch: Launch | None, product: int
) -> None:
    line = f"scale.expert: found {asked['expert']}; expected a divisor of scale.shard times scale.context = {product}"
    with pytest.raises(UserError) as error:
        layout_of(ScaleSpec(**asked), launch)
    assert error.value.lines == (line,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("batch_size=6", "batch_size: found 6; expected a multiple of 4, the 4 processes, as each"),
        (
            "grad_accum_steps=8",
            "expected a multiple of 32, the 4 processes times grad_accum_steps = 8",
        ),
        ("model.residual.dropout=0.1", "model.residual.dropout: found 0.1"),
        ("machine.precision=fp16", "machine.precision: found"),
        ("machine.fused=liger", "machine.fused: found"),
    ],
)
def test_what_several_would_train_otherwise_is_refused(change: str, words: str) -> None:
    run = load_run("modern").override(change)
    check_layout(run, Layout())
    with pytest.raises(UserError) as error:
        check_layout(run, Layout(2, 2))
    (line,) = error.value.lines
    assert line.startswith(change.partition("=")[0] if "accum" not in change else "batch_size")
    assert words in line


@pytest.mark.parametrize("axis", ["context", "tensor", "pipeline"])
def test_probes_look_at_whole_rows_and_layers(axis: str) -> None:
    run = load_run("modern").override("probes.every=5", "grad_accum_steps=2")
    check_layout(run, Layout(2, 2))
    with pytest.raises(UserError, match=r"probes\.every: found 5; probes look at whole rows"):
        check_layout(run, Layout(**{axis: 2}))


def test_what_draws_is_found_in_all_stacks_and_kinds_of_layers() -> None:
    run = load_run("t5-small")
    assert {path for path, _ in dropouts(run)} >= {"model.encoder.residual.dropout"}
    sparse = "layer_kinds.sparse.feedforward.expert.dropout"
    found = {path for path, _ in dropouts(load_run("switch-base-8"))}
    assert found >= {f"model.{sparse}", f"model.encoder.{sparse}"}
    few = load_run("modern").override(
        'model.layers={"cycle" = ["default", "other"]}',
        "model.layer_kinds.other.feedforward.dropout=0.2",
    )
    assert dropouts(few) == [("model.layer_kinds.other.feedforward.dropout", 0.2)]
    drawing = load_run("modern").override(
        "model.feedforward.kind=experts", "model.feedforward.routing.kind=sparsemixer"
    )
    with pytest.raises(UserError, match=r"routing\.kind: found .*draws experts"):
        check_layout(drawing, Layout(1, 2))


@pytest.mark.usefixtures("visitors")
def test_only_what_says_so_is_cut_up() -> None:
    class Foreign(Optimizer):
        """An optimizer that does not say that it can be cut up."""

        kind: Literal["foreign"] = "foreign"
        lr: float = 1.0

    run = load_run("modern").model_copy(update={"optimizer": Foreign()})
    check_layout(run, Layout(2, 1))
    for layout in (Layout(1, 2), Layout(tensor=2), Layout(context=2)):
        with pytest.raises(UserError, match=r"optimizer.kind: found \"foreign\""):
            check_layout(run, layout)


def test_scale_is_no_part_of_what_is_trained() -> None:
    run = load_run("modern")
    assert run.override("scale.replicate=2", "scale.shard=4").hash() == run.hash()


def test_torchrun_is_known_by_what_it_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*STARTED, *PLACE):
        monkeypatch.delenv(name, raising=False)
    assert launched() is None
    assert is_first()
    for name, value in (STARTED | PLACE).items():
        monkeypatch.setenv(name, value)
    assert launched() == Launch(1, 2, 1, 2)
    assert not is_first()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launched() is None


def test_another_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would train the whole run for itself."""
    for name in (*STARTED, *PLACE):
        monkeypatch.delenv(name, raising=False)
    check_launch()
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_launch()
    monkeypatch.setenv("WORLD_SIZE", "4")
    line = "WORLD_SIZE: found 4 without RANK; start the processes by torchrun: torchrun --nproc-per-node 4"
    with pytest.raises(UserError, match=line):
        check_launch()
    for name, value in (STARTED | PLACE).items():
        monkeypatch.setenv(name, value)
    check_launch()
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(UserError, match='RANK: found "one"; expected a number, as torchrun sets'):
        launched()


def test_more_processes_than_gpus_are_refused() -> None:
    check_gpus(Launch(0, 8, 0, 4), 4)
    line = "--nproc-per-node: found 8 processes on a machine of 4 GPUs; expected at most 4"
    with pytest.raises(UserError, match=line):
        check_gpus(Launch(0, 8, 0, 8), 4)


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({}, 1),
        ({"shard": 2, "tensor": 2}, 4),
        ({"replicate": 2, "context": 3}, 6),
        ({"expert": 4}, 4),
    ],
)
def test_without_torchrun_a_plan_is_for_as_many_as_are_asked_for(
    asked: dict[str, int], size: int
) -> None:
    assert planned_layout(ScaleSpec(**asked), None).size == size
    with pytest.raises(UserError):
        planned_layout(ScaleSpec(**asked, pipeline=7), FOUR)


def test_a_dry_run_refuses_what_training_would(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", "modern", "--tiny", "--dry-run", "scale.shard=2")
    assert main([*words, "batch_size=3"]) == 2
    assert "batch_size: found 3; expected a multiple of 2" in capsys.readouterr().err
    assert main([*words, "batch_size=4"]) == 0
    assert "2 processes, scale.replicate = 1, scale.shard = 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("list",), '"list": torchrun starts several processes, but only train supports them'),
        (("train", "--oops"), "--oops"),
        (("train", "modern", "scale.shard=3"), "scale: found scale.shard=3 of 2 processes"),
        (("train", "modern", "batch_size=3"), "batch_size: found 3; expected a multiple of 2"),
    ],
)
def test_a_mistake_is_told_by_the_first_process_alone(
    words: tuple[str, ...],
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in (STARTED | PLACE | {"RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    assert answer in capsys.readouterr().err
    if "modern" not in words:  # else the second one waits for the first, which ends
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
        assert main(words) == 2
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("layout", "rows", "parts"),
    [
        (ONE, 8, 1),
        (ONE, 7, 3),
        (Layout(2, 3), 24, 2),
        (Layout(2, 2, tensor=2, context=2, pipeline=2), 32, 4),
    ],
)
def test_a_process_computes_as_many_rows_of_a_part_as_it_takes(
    layout: Layout, rows: int, parts: int
) -> None:
    tokens = torch.zeros(rows, 6, dtype=torch.long)
    own = [OneOf(layout).rows(part) for part in Batch(Inputs(tokens), tokens).split(parts)]
    run = load_run("modern").override(f"batch_size={rows}", f"grad_accum_steps={parts}")
    assert layout.part_rows(run) == max(len(part.targets) for part in own)


@pytest.mark.parametrize(
    ("name", "value", "most"), [("RANK", "2", 1), ("MASTER_PORT", "99999", 65535)]
)
def test_what_no_launcher_sets_is_refused(
    name: str, value: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known, text in (STARTED | PLACE | {name: value}).items():
        monkeypatch.setenv(known, text)
    line = f"{name}: found {value}; expected at most {most}\\. .* alone: unset WORLD_SIZE"
    with pytest.raises(UserError, match=line):
        launched()


@pytest.mark.parametrize(("rank", "awaits"), [("0", "the other processes"), ("1", "process 0")])
def test_processes_that_do_not_come_are_named(
    rank: str, awaits: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Variables of a group that has ended are left over in a shell."""
    for name, value in (STARTED | PLACE | {"RANK": rank}).items():
        monkeypatch.setenv(name, value)
    found = launched()
    assert found
    with awaited(found, 10.0):
        pass
    with awaited(found, 0.0):
        time.sleep(0.2)
    place = f"{PLACE['MASTER_ADDR']}:{PLACE['MASTER_PORT']}"
    line = f"archwright: process {rank} of 2 waits for {awaits} at {place}. To train with this process alone: unset"
    assert line in capsys.readouterr().err


def test_a_verb_under_variables_that_are_left_over_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (STARTED | PLACE).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["archwright", "list"])
    assert main(["list"]) == 2
    assert "unset WORLD_SIZE if it is left over" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "x")
    assert main() == 2
    assert capsys.readouterr().err.startswith('archwright: RANK: found "x"; expected a number')


def test_pages_start_no_file_of_the_current_folder() -> None:
    """`torchrun -m archwright` runs a folder `archwright/` in the current one; --no-python runs the command."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*")]
    texts = [
        page.read_text("utf-8") for page in pages if page.suffix in (".md", ".sbatch", ".yaml")
    ]
    commands = re.findall(r"torchrun [^`\n]*(?:-m|--no-python) archwright", "\n".join(texts))
    assert len(commands) >= 7
    assert not [command for command in commands if " -m archwright" in command]
