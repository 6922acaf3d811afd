"""Every rule of a run has an example here that breaks it and no other."""

import pytest

from archwright.spec.errors import UserError
from archwright.spec.read import load_run, preset_names
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from tests.sentences import Sentences, lines_of

BROKEN = lines_of("run_rules")
LEGAL = [
    ["grad_accum_steps=16"],
    ["evaluate.stride=256"],
    ["early_stop.min_delta=0.01", "early_stop.patience=2"],
    ["data.tokenizer.kind=file", "data.tokenizer.path=mine.json"],
]


@pytest.mark.parametrize("words", BROKEN)
def test_each_rule_is_broken_by_its_example_alone(words: str, sentences: Sentences) -> None:
    with pytest.raises(UserError) as caught:
        enforce_run(RunSpec().override(words))
    sentences.check("run_rules", words, caught.value.lines)


@pytest.mark.parametrize("kind", ["full", "prefix", "symmetric_window"])
@pytest.mark.parametrize("at", ["", "layer_kinds.local."])
def test_a_mask_that_shows_what_is_to_be_predicted(kind: str, at: str) -> None:
    run = RunSpec().override(f"model.{at}attention.mask.kind={kind}")
    with pytest.raises(UserError) as caught:
        enforce_run(run)
    said = (
        f'model.{at}attention.mask.kind: found "{kind}", through which tokens see what follows them'
    )
    assert caught.value.lines[0].startswith(said)


@pytest.mark.parametrize("words", LEGAL, ids=" ".join)
def test_what_is_legal_passes(words: list[str]) -> None:
    enforce_run(RunSpec().override(*words))


def test_all_broken_rules_of_a_run_and_its_model_are_said_at_once() -> None:
    broken = {words: lines for words, lines in BROKEN.items() if "=file" not in words}
    with pytest.raises(UserError) as caught:
        enforce_run(RunSpec().override(*broken))
    assert caught.value.lines == tuple(line for lines in broken.values() for line in lines)


@pytest.mark.parametrize("name", [*preset_names("runs"), *preset_names("models")])
def test_presets_break_no_rule(name: str) -> None:
    enforce_run(load_run(name))
