"""Every rule of a run has an example here that breaks it and no other."""

import pytest

from archwright.spec.errors import UserError
from archwright.spec.read import load_run, preset_names
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec

BROKEN = [
    (
        ["grad_accum_steps=17"],
        "grad_accum_steps: found 17; expected at most batch_size = 16, as each part of a batch needs a row",
    ),
    (
        ["evaluate.stride=257"],
        "evaluate.stride: found 257; expected at most model.context_length = 256, or tokens are left "
        "out",
    ),
    (
        ["data.tokenizer.path=mine.json"],
        'data.tokenizer.path: given beside data.tokenizer.kind = "bpe", which reads no file; '
        'expected kind = "file"',
    ),
    (
        ["data.tokenizer.kind=file"],
        'data.tokenizer.path: found nothing; data.tokenizer.kind = "file" expects the path of a '
        "tokenizer.json",
    ),
    (
        ["model.encoder.kind=stack"],
        'model.encoder.kind: found "stack"; expected "none": only decoders can be built so far',
    ),
]
LEGAL = [
    ["grad_accum_steps=16"],
    ["evaluate.stride=256"],
    ["data.tokenizer.kind=file", "data.tokenizer.path=mine.json"],
]


@pytest.mark.parametrize(("words", "said"), BROKEN, ids=[words[0] for words, _ in BROKEN])
def test_each_rule_is_broken_by_its_example_alone(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        enforce_run(RunSpec().override(*words))
    assert caught.value.lines == (said,)


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
    words = [word for words, _ in BROKEN if words != ["data.tokenizer.kind=file"] for word in words]
    with pytest.raises(UserError) as caught:
        enforce_run(RunSpec().override(*words))
    assert caught.value.lines == tuple(said for words, said in BROKEN if "=file" not in words[0])


@pytest.mark.parametrize("name", [*preset_names("runs"), *preset_names("models")])
def test_presets_break_no_rule(name: str) -> None:
    enforce_run(load_run(name))
