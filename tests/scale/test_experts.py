"""Expert parallel: gradients of every parameter beside those of one process, steps, files, and what is refused."""

from pathlib import Path

import pytest
from torch import Tensor

from archwright.scale.checks import check_layout
from archwright.spec.errors import UserError
from bench.scale import Case
from tests.scale.gradients import Grid, assert_those_of_one, of_group
from tests.scale.together import LOSSES, NORMS, layout_asked, two_train_as_one, without_dropout
from tests.sentences import Sentences, lines_of

ROWS = {
    "balance, a shared expert, computed again": (
        *("mixtral-8x7b", "model.feedforward.balance_loss=1", "model.feedforward.shared=gated"),
        *("model.feedforward.router_z_loss=0.1", "model.feedforward.latent_dim=24"),
        "machine.activation_checkpointing=full",
    ),
    "biases, numbers for all experts": (
        *("mixtral-8x7b", "model.feedforward.expert.kind=xielu", "grad_accum_steps=2"),
        *("model.feedforward.expert.bias=true", "model.feedforward.out_bias=true"),
        *(
            "model.feedforward.expert.hidden_norm.kind=rms",
            "machine.activation_checkpointing=selective",
        ),
    ),
    "experts that no token goes through": ("mixtral-8x7b", "model.feedforward.top_k=1"),
}
"""What stands in an expert and beside it. Tokens of the last row are all alike: of two processes, one has none."""
FOUR: tuple[Grid, ...] = (
    (1, 4, 1, True, 1, 2),
    (2, 2, 1, True, 1, 2),
    (1, 2, 1, True, 2, 4),
    (1, 2, 2, True, 1, 2),
    (1, 2, 2, False, 1, 2),
)


@pytest.fixture(scope="module")
def rows(text: Path) -> dict[str, Case]:
    alike = text.with_name("alike.txt")
    alike.write_text("a" * 20_000, encoding="utf-8")
    return {
        name: Case(name, words, str(alike if "no token" in name else text))
        for name, words in ROWS.items()
    }


@pytest.fixture(scope="module")
def together(rows: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return of_group(4, rows, FOUR, tmp_path_factory.mktemp("gradients") / "four")


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_gradients_are_those_of_one_process(
    name: str, rows: dict[str, Case], together: dict[str, Tensor]
) -> None:
    alone = assert_those_of_one(name, rows[name], together, FOUR)
    idle = [not half.any() for g in alone if g.ndim == 3 for half in g.chunk(2)]
    assert any(idle) == ("no token" in name)


@pytest.mark.slow
def test_files_are_those_of_one_process_which_goes_on_with_them(text: Path, tmp_path: Path) -> None:
    words = (
        *("model.feedforward.kind=experts", "model.feedforward.num_experts=6"),
        *("model.feedforward.capacity=9", "model.feedforward.routing.kind=sigmoid"),
        *("model.feedforward.shared=added", "model.feedforward.selection_bias_update_rate=0.1"),
        *("grad_accum_steps=2", "optimizer.kind=muon"),
    )
    records = (*LOSSES, NORMS)
    shared = two_train_as_one(text, tmp_path, "scale.expert=2", *words, records=records)
    assert (shared.spec.scale.shard, shared.spec.scale.expert) == (2, 2)


@pytest.mark.parametrize("words", lines_of("layouts.expert"))
def test_what_processes_cannot_share_is_refused(words: str, sentences: Sentences) -> None:
    run = without_dropout(*words.split())
    layout = layout_asked(run)
    check_layout(run, layout._replace(expert=1))
    with pytest.raises(UserError) as error:
        check_layout(run, layout)
    sentences.check("layouts.expert", words, error.value.lines)
