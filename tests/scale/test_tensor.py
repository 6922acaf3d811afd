"""Tensor and sequence parallel: gradients of every parameter beside those of one process, steps, files, refusals."""

from pathlib import Path

import pytest
from torch import Tensor

from archwright.model.build import build
from archwright.scale.checks import check_layout
from archwright.scale.cuts import shared_branches
from archwright.scale.tensor import computed_alike, refusals, shares_tokens
from archwright.spec.errors import UserError
from archwright.spec.read import load
from bench.scale import MODELS, Case, of_processes, title, trained
from tests.scale.gradients import Grid, assert_those_of_one, of_group
from tests.scale.together import (
    TWELVE_STEPS,
    gone_back,
    layout_asked,
    started,
    two_train_as_one,
    without_dropout,
)
from tests.scale.together import trained as trained_by
from tests.sentences import Sentences, lines_of
from tests.tiny import tiny_words

SHORT = "model.context_length=29"
"""A length of which processes have different numbers of tokens."""
ROWS = {
    "biases": ("textbook", "model.feedforward.kind=gelu", SHORT),
    "one key-value head": ("modern", SHORT, "machine.activation_checkpointing=selective"),
    "parallel branches": (
        *("modern", "model.residual.kind=parallel", "model.attention.num_kv_heads=2"),
        *("model.attention.sinks=true", "model.attention.bias=true", "model.feedforward.bias=true"),
        *("model.attention.qk_norm.kind=rms", "model.attention.qk_norm_over=per_head"),
        "machine.activation_checkpointing=full",
    ),
    "a norm over all heads, norms with a number": (
        *("textbook", "model.feedforward.kind=gelu", "model.norm.kind=dyt"),
        *("model.attention.qk_norm.kind=rms", "model.attention.qk_norm_over=projection"),
    ),
    "values by token, distances": (
        *("textbook", "model.feedforward.kind=xielu", "model.position.kind=alibi"),
        "model.attention.value_embedding.kind=gated",
    ),
    "shared experts": (
        *("mixtral-8x7b", "model.feedforward.balance_loss=1", "model.feedforward.shared=gated"),
        *("model.feedforward.router_z_loss=0.1", "model.feedforward.latent_dim=24"),
    ),
    "latents behind gates": ("deepseek-v2-lite", "model.attention.gate=head"),
    "two stacks": MODELS["t5-small, GELU"],
    "norms on both sides": ("gemma-2-2b",),
    "shared layers": ("albert-base",),
    "keys of other layers": ("gemma-4-e2b",),
}
"""What a tensor group shares, what it computes alike, and what stands between."""
TWO: tuple[Grid, ...] = ((1, 1, 2, False), (1, 1, 2, True))
FOUR: tuple[Grid, ...] = ((1, 2, 2, True), (2, 1, 2, False))
STEPS, ROW = 4, "modern, Muon, two microbatches, chunked loss"


@pytest.fixture(scope="module")
def rows(text: Path) -> dict[str, Case]:
    return {name: Case(name, words, str(text)) for name, words in ROWS.items()}


@pytest.fixture(scope="module")
def together(rows: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    out = tmp_path_factory.mktemp("gradients")
    return of_group(2, rows, TWO, out / "two") | of_group(4, rows, FOUR, out / "four")


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_gradients_are_those_of_one_process(
    name: str, rows: dict[str, Case], together: dict[str, Tensor]
) -> None:
    assert_those_of_one(name, rows[name], together, (*TWO, *FOUR))


@pytest.mark.release
def test_tensor_groups_in_a_context_group_have_the_gradients_of_one_process(
    rows: dict[str, Case], tmp_path: Path
) -> None:
    few = {
        name: rows[name]
        for name in ("norms on both sides", "latents behind gates", "shared experts")
    }
    grid: Grid = (1, 1, 2, True, 2)
    together = of_group(4, few, (grid,), tmp_path / "found")
    for name, case in few.items():
        assert_those_of_one(name, case, together, (grid,))


@pytest.mark.slow
def test_steps_are_those_of_one_process(text: Path) -> None:
    case = Case(ROW, MODELS[ROW], str(text))
    one = trained(case, STEPS)
    found = of_processes(2, [case], STEPS, TWO)
    for grid in TWO:
        for (loss, norm), (expected, expected_norm) in zip(
            found[f"{ROW}/{title(grid)}"], one, strict=True
        ):
            assert loss == pytest.approx(expected, abs=5e-6)
            assert norm == pytest.approx(expected_norm, rel=1e-5)


@pytest.mark.slow
def test_files_are_those_of_one_process_which_goes_on_with_them(text: Path, tmp_path: Path) -> None:
    two_train_as_one(text, tmp_path, "scale.tensor=2")


@pytest.mark.release
@pytest.mark.slow
def test_a_run_of_which_the_end_is_left_goes_on(text: Path, tmp_path: Path) -> None:
    """The first pass is an evaluation then."""
    words = *TWELVE_STEPS, "scale.tensor=2"
    folder = trained_by(2, tmp_path / "run", *tiny_words(text, *words))
    weights = folder.model_file.read_bytes()
    lines = folder.metrics_file.read_text().splitlines(keepends=True)
    before = [line for line in lines if '"step": 12,' not in line or '"kind": "train"' in line]
    assert len(before) < len(lines)
    folder.metrics_file.write_text("".join(before))
    gone_back(folder, 12)
    done = started(2, "-m", "archwright", "train", "--resume", str(folder.path), "--quiet")
    assert done.returncode == 0, done.stderr
    assert folder.model_file.read_bytes() == weights


@pytest.mark.parametrize("words", lines_of("layouts.tensor"))
def test_what_does_not_divide_is_refused(words: str, sentences: Sentences) -> None:
    run = without_dropout(*words.split())
    with pytest.raises(UserError) as error:
        check_layout(run, layout_asked(run))
    sentences.check("layouts.tensor", words, error.value.lines)


def test_a_model_of_which_nothing_can_be_shared_is_refused() -> None:
    spec = load("textbook").override(
        "feedforward.hidden_norm.kind=layer", "attention.out_norm.kind=layer"
    )
    (line,) = refusals(build(spec, device="meta"), 2)
    assert line.startswith("scale.tensor: found 2; expected 1, as no branch of this model")


def test_a_table_of_distances_is_whole_where_one_attention_reads_it_whole() -> None:
    words = 'layers={"cycle" = ["default", "other"]}', "position.kind=t5"
    change = 'layer_kinds={"other" = {"attention" = {"out_norm" = {"kind" = "rms"}}}}'
    spec = load("modern").override(*words, change)
    shared = {type(branch).__name__ for branch in shared_branches(build(spec, device="meta"))}
    assert shared == {"Gated"}


def test_what_is_computed_alike_has_names() -> None:
    for name, expected in (
        ("modern", []),
        ("olmo-2-13b", ["attention"]),
        ("bert-base", ["embedding", "head"]),
    ):
        model = build(load(name).tiny(), device="meta")
        assert computed_alike(model, 2) == expected


def test_tokens_are_shared_where_all_between_branches_looks_at_each_by_itself() -> None:
    assert shares_tokens(build(load("gemma-2-2b").tiny(), device="meta"))
    for name in ("albert-base", "reformer", "gemma-4-e2b"):
        assert not shares_tokens(build(load(name).tiny(), device="meta").stacks[0]), name
