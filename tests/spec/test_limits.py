"""Sizes and numbers that no run has are refused by name, before anything is made of them."""

import pytest

from archwright.spec.errors import UserError, nearest
from archwright.spec.read import load, load_run
from archwright.spec.study_spec import StudySpec

MODEL = {
    "dim=99999999999": "dim: found 99999999999; expected at most 16777216",
    f"dim={'9' * 400}": "dim: found about 1e400; expected at most 16777216",
    "num_layers=1000000000": "num_layers: found 1000000000; expected at most 2048",
    "vocab_size=9223372036854775807": "vocab_size: found 9223372036854775807; expected at most "
    '16777216 or "auto"',
    "context_length=1000000000000": "context_length: found 1000000000000; expected at most 1073741824",
    "attention.head_dim=2147483648": "attention.head_dim: found 2147483648; expected at most "
    '16777216 or "auto"',
    "feedforward.num_experts=1000000": "feedforward.num_experts: found 1000000; expected at most 4096",
    "norm.eps=1e-320": "norm.eps: found 1e-320; expected a size of 1e-30 to 1e30",
    "residual.multiplier=1e308": "residual.multiplier.attention: found 1e+308; expected a size of "
    "1e-30 to 1e30",
}
RUN = {
    "optimizer.lr=1e308": "optimizer.lr: found 1e+308; expected a size of 1e-30 to 1e30",
    "optimizer.lr=inf": "optimizer.lr: found inf; expected a finite number",
    "optimizer.betas=[1e-320,0.9]": "optimizer.betas: found 1e-320; expected a size of 1e-30 to 1e30",
    "optimizer.weight_decay=1e20": "optimizer.weight_decay: found 1e+20; expected at most 1e+06",
    "max_grad_norm=1e-320": "max_grad_norm: found 1e-320; expected a size of 1e-30 to 1e30",
    "batch_size=1000000000000": "batch_size: found 1000000000000; expected at most 1073741824",
    "machine.threads=100000000": 'machine.threads: found 100000000; expected at most 4096 or "auto"',
    "budget=1e30tokens": 'budget: found "1e30tokens"; expected at most 1e16tokens',
    "budget=1e18steps": 'budget: found "1e18steps"; expected at most 1e12steps',
    "budget=1e300d": 'budget: found "1e300d"; expected at most a hundred years',
    "budget=9e300flops": 'budget: found "9e300flops"; expected at most 1e30flops',
}
STUDY = {
    "budget=1e300d": 'budget: found "1e300d"; expected at most a hundred years',
    "seeds=1000000000": "seeds: found 1000000000; expected at most 1000",
}


@pytest.mark.parametrize("assignment", MODEL, ids=lambda text: text[:40])
def test_of_a_model(assignment: str) -> None:
    base = "mixtral-8x7b" if "experts" in assignment else "modern"
    with pytest.raises(UserError) as caught:
        load(base).override(assignment)
    assert caught.value.lines[0] == MODEL[assignment]


@pytest.mark.parametrize("assignment", RUN)
def test_of_a_run(assignment: str) -> None:
    with pytest.raises(UserError) as caught:
        load_run("modern").override(assignment)
    assert caught.value.lines == (RUN[assignment],)


@pytest.mark.parametrize("assignment", STUDY)
def test_of_a_study(assignment: str) -> None:
    with pytest.raises(UserError) as caught:
        StudySpec().override(assignment)
    assert caught.value.lines == (STUDY[assignment],)


@pytest.mark.parametrize("budget", ["36500d", "1e12steps", "100Ttokens", "1e27flops"])
def test_long_runs_are_runs(budget: str) -> None:
    assert load_run("modern").override(f"budget={budget}").budget == budget


@pytest.mark.parametrize(
    ("word", "names", "hint"),
    [
        ("mamba", ["llama", "gemma"], ""),
        ("trian", ["train", "eval"], "train"),
        ("rsm", ["rms", "layer"], "rms"),
        ("a.txt", ["latin.txt"], ""),
        ("Notes.TXT", ["notes.txt"], "notes.txt"),
        ("llama", ["gemma-2b", "llama-7b"], "llama-7b"),
        ("t5-11b", ["opt-13b"], ""),
        ("x" * 5000, ["x"], ""),
        ("", ["x"], ""),
    ],
)
def test_only_what_is_spelt_much_alike_is_suggested(word: str, names: list[str], hint: str) -> None:
    """No more than a third of the letters differ, by Damerau and Levenshtein, or a name goes on where a word ends."""
    assert nearest(word, names) == (f' Did you mean "{hint}"?' if hint else "")
