"""What explanations compute, beside what is known of each choice."""

import math

import pytest

from archwright.inspection.explain import AXES, Numbers, formula, kv_heads, numbers_of_kind
from archwright.inspection.terms import TERMS
from archwright.plugins import REGISTRIES
from archwright.spec.choice import Choice

KINDS = {
    (registry.base.axis, kind): choice
    for registry in REGISTRIES.values()
    for kind, choice in registry.base.kinds.items()
    if registry.base.axis in AXES
}
PATHS = {"mask": "attention.mask"}


def numbers(axis: str, kind: str, *words: str) -> Numbers:
    words = (f"{PATHS.get(axis, axis)}.kind={kind}", *words)
    return numbers_of_kind(KINDS[axis, kind], words)[0]


@pytest.mark.parametrize("kind", ["none", "rope", "alibi", "t5", "transformer_xl"])
def test_scores_of_relative_positions_stay_where_all_move(kind: str) -> None:
    _, (_, moved), (_, reversed_) = numbers("position", kind).rows
    assert float(moved) < 1e-9
    assert (float(reversed_) > 0.1) == (kind != "none")


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "axial"])
def test_scores_of_absolute_positions_do_not(kind: str) -> None:
    assert float(numbers("position", kind).rows[1][1]) > 0.1


def test_layer_norm_forgets_a_shift_and_rms_norm_does_not() -> None:
    layer, rms = numbers("norm", "layer").rows, numbers("norm", "rms").rows
    assert float(layer[3][3]) < 1e-4  # of 3 x
    assert float(layer[4][3]) < 1e-4  # of x + 5
    assert float(rms[3][3]) < 1e-4
    assert float(rms[4][3]) > 1
    assert (float(layer[2][1]), float(layer[2][2])) == pytest.approx((0, 1), abs=0.01)


def test_a_window_is_drawn() -> None:
    _, *rows = numbers("mask", "window").rows
    assert [row.split().count("■") for _, row in rows] == [min(i + 1, 5) for i in range(16)]


@pytest.mark.parametrize("kind", sorted(kind for axis, kind in KINDS if axis == "mask"))
def test_a_mask_is_drawn_at_sizes_at_which_it_hides_what_its_rule_hides(kind: str) -> None:
    plain = {"causal": 136, "full": 256}
    _, *rows = numbers("mask", kind).rows
    shown = sum(row.split().count("■") for _, row in rows)
    assert shown == plain[kind] if kind in plain else shown not in plain.values()


def test_the_stream_of_pre_norm_grows_and_that_of_post_norm_does_not() -> None:
    pre, post = ([float(x) for x in numbers("residual", k).rows[1][1:]] for k in ("pre", "post"))
    assert pre == sorted(pre)
    assert pre[-1] > 1.5 * pre[0]
    assert post == pytest.approx([1] * len(post), abs=0.01)


def test_gqa_caches_what_its_key_heads_need() -> None:
    found = kv_heads()
    caches = {row[1]: row[3] for row in found.rows[1:]}
    assert caches["32"] == "524 kB"  # 2 x 32 layers x 32 heads x 128, in 16 bits
    assert caches["1"] == "16.4 kB"


def test_an_activation_is_tabulated_with_its_slope() -> None:
    _, values, slopes = numbers("feedforward", "gelu").rows
    assert float(values[7]) == pytest.approx(0.5 * (1 + math.erf(1 / math.sqrt(2))), abs=1e-3)
    assert float(slopes[5]) == pytest.approx(0.5)


@pytest.mark.sampled(fast=8)
@pytest.mark.parametrize(("axis", "kind"), sorted(KINDS))
def test_every_kind_has_numbers_or_says_why_not(axis: str, kind: str) -> None:
    choice: type[Choice] = KINDS[axis, kind]
    for found in numbers_of_kind(choice, [f"{PATHS.get(axis, axis)}.kind={kind}"]):
        assert len({len(row) for row in found.rows}) == 1
        assert all(cell == "" or cell.strip() for row in found.rows for cell in row)


def test_formulas_are_those_of_the_parts() -> None:
    assert "theta^(-2i/r)" in formula(KINDS["position", "rope"])
    assert "sqrt(mean(x^2) + eps)" in formula(KINDS["norm", "rms"])
    ends = ("Raises:", "Args:", "Attributes:")
    assert not any(end in formula(choice) for end in ends for choice in KINDS.values())


def test_terms_compute_what_the_literature_says() -> None:
    tables = {name: {row[0]: row[1:] for row in make().rows} for name, make in TERMS.items()}
    assert tables["perplexity"]["0.6931"] == ("1", "2")
    # Multi-head attention: 2 n tokens per cached element, 16 of a batch of 32 at n = 128.
    assert tables["arithmetic intensity"]["128"] == ("120", "1.37e+03", "0.97", "16")
    assert tables["z_loss"]["0"] == ("8.318", f"{1e-4 * math.log(4096) ** 2:.4g}")
    assert tables["attention.softcap"]["capped"][-1] == "50"
    assert tables["max_grad_norm"]["1"] == ("5", "0.6, 0.8")
    assert tables["aspect ratio"]["gpt-3-175b"][-1] == "128"
    assert tables["feedforward.hidden_dim"]["4,096"][0] == "16,384"
    assert tables["BPE"]["4"] == (" low es", "low| low|es|t| |n|e|w|es|t")
    assert tables["schedule.warmup"]["rate"][4] == "1"
