"""Names that keys have elsewhere lead to keys that are there."""

import pytest

from archwright.spec.errors import UserError, nearest
from archwright.spec.model_spec import ModelSpec
from archwright.spec.other_names import CHOICES, KEYS, VALUES
from archwright.spec.overrides import has_path, key_meant, paths
from archwright.spec.run_spec import RunSpec


def test_each_leads_to_a_key_that_is_there_from_one_that_is_not() -> None:
    known = {path.removeprefix("model.") for path in paths(RunSpec)}
    assert {*KEYS.values()} <= known
    assert {*KEYS} & known <= {"layers", "data"}  # tables, which no number is a value of


@pytest.mark.parametrize(("name", "key"), [("d_model", "dim"), ("n_heads", "attention.num_heads")])
def test_models_are_told_with_and_without_their_prefix(name: str, key: str) -> None:
    for path in (name, f"model.{name}"):
        with pytest.raises(UserError, match=rf'unknown key\. Did you mean "{key}"'):
            ModelSpec().override(f"{path}=64")
        with pytest.raises(UserError, match=rf'unknown key\. Did you mean "{key}"'):
            RunSpec().override(f"{path}=64")


def test_a_model_has_no_keys_of_runs() -> None:
    with pytest.raises(UserError, match=r"learning_rate: unknown key\.$"):
        ModelSpec().override("learning_rate=1")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("llama3", ' Did you mean "llama-3-8b"?'),
        ("LLAMA-3-8B", ' Did you mean "llama-3-8b"?'),
        ("llama3.2", ' Did you mean "llama-3.2-1b"?'),
        ("llamas3", ""),
    ],
)
def test_marks_between_letters_count_for_nothing(word: str, found: str) -> None:
    assert nearest(word, ["llama-3-8b", "llama-3.2-1b", "mixtral-8x7b"]) == found


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ("model.norm.kind=layernorm", "layer"),
        ("model.position.kind=Rotary", "rope"),
        ("model.feedforward.kind=moe", "experts"),
        ("model.norm.kind=lay", "layer"),
        ("schedule.kind=cos", "cosine"),
        ("machine.device=gpu", "cuda"),
        ("machine.precision=bfloat16", "bf16"),
        ("machine.kernel=eagr", "eager"),
    ],
)
def test_values_lead_to_what_is_there(change: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf'Did you mean "{meant}"\?$'):
        RunSpec().override(change)


def test_no_other_name_leads_away_from_what_is_near() -> None:
    with pytest.raises(UserError, match=r'"none", "rms"$'):
        RunSpec().override("model.norm.kind=rope")
    assert not {*VALUES} & {*CHOICES}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("lr", "optimizer.lr"),
        ("learning_rate", "optimizer.lr"),
        ("data", "data.text"),
        ("batch_size", "batch_size"),
        ("num_layers", "num_layers"),
        ("ouput", ""),
    ],
)
def test_the_key_that_an_option_stands_for(name: str, key: str) -> None:
    assert key_meant(RunSpec, name) == key


def test_a_path_is_found_as_in_the_list_of_all() -> None:
    for cls in (ModelSpec, RunSpec):
        known = [*paths(cls)]
        assert all(has_path(cls, tuple(path.split("."))) for path in known)
        others = (f"{path}.nowhere" for path in known)
        assert not any(has_path(cls, tuple(path.split("."))) for path in others)
    assert not has_path(ModelSpec, ("nrom", "kind"))
