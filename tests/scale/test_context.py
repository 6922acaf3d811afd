"""Context parallel: gradients of every parameter beside those of one process, steps, files, refusals."""

import json
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.parts.kernels import ScoreMods, kernel_of
from archwright.parts.masks import AttentionMask, pattern_of
from archwright.parts.token_layout import token_layout
from archwright.scale.checks import check_layout
from archwright.scale.context import in_order
from archwright.scale.layout import Layout
from archwright.scale.processes import OneOf, stretch_of
from archwright.spec.errors import UserError
from archwright.spec.masks import Window
from bench.scale import Case
from tests.scale.gradients import Grid, assert_those_of_one, of_group
from tests.scale.together import LOSSES, NORMS, two_train_as_one, without_dropout
from tests.tiny import WORDS

BLOCKWISE = "machine.kernel=blockwise"
ROWS = {
    "windows, soft caps": ("gemma-2-2b", BLOCKWISE, "machine.activation_checkpointing=selective"),
    "documents, computed again": (
        *("modern", "data.packing=document_mask", "machine.loss=chunked"),
        "machine.activation_checkpointing=full",
    ),
    "experts": (
        *("mixtral-8x7b", "model.feedforward.balance_loss=1", "model.feedforward.shared=gated"),
        "model.feedforward.router_z_loss=0.1",
    ),
    "latents": ("deepseek-v2-lite", "data.packing=document_mask"),
    "distances": (
        *("textbook", "model.feedforward.kind=gelu", "model.position.kind=alibi", BLOCKWISE),
        *("model.attention.sinks=true", "model.attention.value_embedding.kind=gated"),
    ),
    "angles by length": (
        *("modern", "model.position.scaling.kind=dynamic", "model.position.scaling.factor=4"),
        "model.position.scaling.original_length=64",
    ),
    "positions of a table, both ways": ("deberta-v3-base",),
    "keys of other layers": ("gemma-4-e2b", "data.packing=document_mask"),
    "blocks at random": (
        *("roberta-base", "model.attention.mask.kind=big_bird", BLOCKWISE),
        "model.attention.mask.block_size=8",
    ),
}
"""What looks along a text: masks, positions, documents, and what is balanced over all tokens."""
TWO: tuple[Grid, ...] = ((1, 1, 1, True, 2),)
FOUR: tuple[Grid, ...] = ((2, 1, 1, True, 2),)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of a few words, several of which stand in a row."""
    folder, dice, words = tmp_path_factory.mktemp("documents"), random.Random(1), WORDS.split()
    for i in range(300):
        text = " ".join(dice.choice(words) for _ in range(dice.randint(2, 12)))
        (folder / f"{i:03}.txt").write_text(text + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def rows(documents: Path) -> dict[str, Case]:
    return {name: Case(name, words, str(documents)) for name, words in ROWS.items()}


@pytest.fixture(scope="module")
def together(rows: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    out = tmp_path_factory.mktemp("gradients")
    few = {name: rows[name] for name in ("windows, soft caps", "experts")}
    return of_group(2, rows, TWO, out / "two") | of_group(4, few, FOUR, out / "four")


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_gradients_are_those_of_one_process(
    name: str, rows: dict[str, Case], together: dict[str, Tensor]
) -> None:
    grids = [grid for grid in (*TWO, *FOUR) if f"{name}/{json.dumps(grid)}/0" in together]
    assert grids
    assert_those_of_one(name, rows[name], together, grids)


@pytest.mark.release
def test_files_are_those_of_one_process_which_goes_on_with_them(text: Path, tmp_path: Path) -> None:
    words = ("optimizer.kind=muon", "grad_accum_steps=2", "data.packing=document_mask")
    records = (*LOSSES, NORMS)
    shared = two_train_as_one(text, tmp_path, "scale.context=2", *words, records=records)
    assert shared.spec.scale.context == 2


def test_stretches_are_all_of_a_batch_and_padding_behind_it() -> None:
    tokens, targets = torch.arange(14).view(2, 7), torch.arange(14).view(2, 7) + 1
    batch = Batch(Inputs(tokens, prefix_lengths=torch.tensor([3, 4])), targets)
    parts = [stretch_of(batch, rank, 3) for rank in range(3)]
    assert [part.targets.shape for part in parts] == [(2, 3)] * 3
    real = torch.cat([part.inputs.padding_mask for part in parts], 1)
    assert real.tolist() == [[True] * 7 + [False] * 2] * 2
    for of_parts, whole in (
        ([part.inputs.tokens for part in parts], tokens),
        ([part.targets for part in parts], targets),
    ):
        assert torch.equal(torch.cat(of_parts, 1)[:, :7], whole)
    assert (torch.cat([part.targets for part in parts], 1)[:, 7:] == IGNORE).all()
    assert all(part.inputs.prefix_lengths.tolist() == [3, 4] for part in parts)
    even = stretch_of(batch[:1], 2, 7)
    assert even.inputs.padding_mask is None
    assert even.inputs.tokens.tolist() == [[2]]
    assert OneOf(Layout(2, context=7)).rows(batch).targets.shape == (1, 1)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_stretches_see_as_many_keys_of_a_causal_mask(size: int) -> None:
    length = 4 * size
    tokens = torch.arange(length)[None]
    parts = [stretch_of(Batch(Inputs(tokens), tokens), rank, size).targets for rank in range(size)]
    assert len({int((part + 1).sum()) for part in parts}) == 1
    assert torch.equal(in_order(torch.cat(parts, 1), 1, size), tokens)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "blockwise", "flex"])
@pytest.mark.parametrize("documents", [False, True])
def test_two_ranges_of_queries_have_the_rows_of_a_whole_mask(kernel: str, documents: bool) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 24, 4, 8) for _ in range(3))
    tokens = torch.zeros(2, 24, dtype=torch.long)
    segments = (torch.rand(2, 24) < 0.2).cumsum(1) if documents else None
    whole = AttentionMask(pattern_of(Window(size=9), 4), token_layout(tokens, segment_ids=segments))
    part, at = whole.of_columns(4, 8, (16, 20)), [*range(4, 8), *range(16, 20)]
    run = kernel_of(kernel).run
    scores = ScoreMods(0.3)
    with torch.no_grad():
        found, expected = run(q[:, at], k, v, part, scores), run(q, k, v, whole, scores)[:, at]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(
        part.dense.expand(2, -1, -1, -1), whole.dense.expand(2, -1, -1, -1)[:, :, at]
    )
    assert part.ranges_of_columns(1, 6) == [(5, 8), (16, 18)]


OTHERWISE = "by which tokens depend on others otherwise than through keys and values"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("modern", "model.context_length=100"),
            "model.context_length: found 100; expected a multiple of scale.context = 8",
        ),
        (("t5-small",), "model.encoder: found one, whose texts processes do not share"),
        (("electra-small",), "model.generator: found one, whose texts processes do not share"),
        (("bert-base",), 'model.sequence_head.kind: found "pooled", which reads rows as a whole'),
        (
            ("hybrid-3-1",),
            f'model.layer_kinds.recurrent.recurrence.kind: found "linear", {OTHERWISE}',
        ),
        (("longformer-base",), f'model.attention.kind: found "longformer", {OTHERWISE}'),
        (
            ("mixtral-8x7b", "model.feedforward.capacity=9"),
            f"model.feedforward.capacity: found 9, {OTHERWISE}",
        ),
    ],
)
def test_what_looks_along_texts_otherwise_is_refused(words: tuple[str, ...], line: str) -> None:
    run = without_dropout(*words)
    check_layout(run, Layout(2))
    with pytest.raises(UserError) as error:
        check_layout(run, Layout(context=8))
    assert len(error.value.lines) == 1
    assert error.value.lines[0].startswith(line)


def test_every_choice_that_is_refused_has_its_line() -> None:
    run = without_dropout("reformer")
    with pytest.raises(UserError) as error:
        check_layout(run, Layout(context=2))
    paths = [line.partition(":")[0] for line in error.value.lines]
    assert paths == ["model.residual.kind", "model.layer_kinds.hashed.attention.kind"]
