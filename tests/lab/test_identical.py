"""Variants that are one model in effect are refused, and told what made them so."""

from itertools import product

import pytest
import torch

from archwright.lab.design.identical import refuse_identical
from archwright.lab.design.matching import count, matched
from archwright.lab.design.variants import arms, split
from archwright.parts.masks import is_full, pattern_of
from archwright.spec import masks
from archwright.spec.errors import UserError
from archwright.spec.study_spec import StudySpec
from tests.parts.test_masks import CHOICES


def study(*words: str, **options: object) -> StudySpec:
    first, *rest = words
    named = {word: tuple(split(word)) for word in rest}
    return StudySpec.model_validate({"baseline": tuple(split(first)), "variants": named} | options)


def complaints(*words: str, size: float | None = 2e5, **options: object) -> list[str]:
    asked = study(*words, **options)
    try:
        refuse_identical(asked, arms(asked, size))
    except UserError as error:
        return list(error.lines)
    return []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("modern", "modern:norm.kind=rms"), "trained alike; there is nothing to compare"),
        (
            ("modern", ":attention.num_kv_heads=1"),
            "= 1 is what both have at this size (dim 64); give another value, or --size 0.55M, at which they differ",
        ),
        (
            ("modern", ":attention.mask.kind=window,attention.mask.size=512"),
            "such as attention.mask.size=32",
        ),
        (
            ("modern", ":attention.mask.kind=chunked,attention.mask.size=128"),
            'the mask "chunked" with size = 128 hides nothing in 128 tokens',
        ),
        (
            ("modern:attention.mask.kind=window,attention.mask.size=128", ":attention.mask.kind=causal"),
            'the mask "window" with size = 128 hides nothing',
        ),
        (
            ("modern", ":layer_kinds.local.norm.eps=1e-5:layers.cycle=['local']"),
            "nothing to compare",
        ),
    ],
)  # fmt: skip
def test_one_model_under_two_names_is_refused(words: tuple[str, ...], why: str) -> None:
    (line,) = complaints(*words)
    assert "are the same model, trained alike" in line
    assert "\n" not in line
    assert why in line


@pytest.mark.parametrize(
    "words",
    [
        ("modern", ":feedforward.hidden_dim=128", ":feedforward.hidden_dim=2048"),
        ("modern", ":feedforward.ratio=2", ":feedforward.ratio=4", ":feedforward.ratio=8"),
        ("modern", ":attention.mask.kind=window"),
        ("modern", ":attention.mask.kind=window,attention.mask.size=127"),
        ("modern", ":optimizer.lr=0.02"),
        ("modern", ":layer_kinds.local.norm.kind=layer:layers.cycle=['local', 'default']"),
    ],
)
def test_different_models_are_not(words: tuple[str, ...]) -> None:
    assert complaints(*words) == []


def test_variants_are_compared_with_one_another_too() -> None:
    same = "attention.mask.kind=window,attention.mask.size={}"
    (line,) = complaints("textbook", "modern", f"modern:{same.format(500)}")
    assert '"modern:attention.mask.kind=window,attention.mask.size=500" and "modern"' in line


def test_longer_texts_may_tell_them_apart() -> None:
    words = ("modern", ":attention.mask.kind=window,attention.mask.size=128")
    assert complaints(*words)
    assert complaints(*words, lengths=(2,)) == []


def test_what_scaling_or_matching_overwrote_is_named(tmp_path) -> None:
    for width in (1024, 1536):
        text = f'base = "modern"\n[feedforward]\nhidden_dim = {width}\n'
        (tmp_path / f"h{width}.toml").write_text(text, encoding="utf-8")
    asked = study(*(str(tmp_path / f"h{width}.toml") for width in (1024, 1536)))
    runs = arms(asked, 2e5)
    first, second = runs.values()
    assert first.model.hash() != second.model.hash()
    target = count(first.model, 1024)
    runs[[*runs][1]] = second.model_copy(
        update={"model": matched(second.model, target, "non_embedding", 1024)[0]}
    )
    with pytest.raises(UserError) as caught:
        refuse_identical(asked, runs)
    (line,) = caught.value.lines
    assert (
        "they differ in model.feedforward.hidden_dim: 1024 -> 1536, which scaling and matching"
        in line
    )
    assert line.endswith("such as :feedforward.hidden_dim=1536")


@pytest.mark.parametrize(
    ("kind", "field", "size"),
    [
        ("window", "size", 32),
        ("chunked", "size", 32),
        ("window_global", "size", 32),
        ("strided", "stride", 64),
        ("fixed", "stride", 64),
        ("dilated_window", "size", 128),
        ("block_sparse", "block_size", 2),
    ],
)
def test_a_mask_without_a_size_fits_the_texts(kind: str, field: str, size: int) -> None:
    """Texts of `modern` have 256 tokens, and 128 when it is small: a mask keeps its share or shows a quarter."""
    asked = study("modern", f":attention.mask.kind={kind}")
    mask = arms(asked, 2e5)[f":attention.mask.kind={kind}"].model.attention.model_dump()["mask"]
    assert mask[field] == size
    assert complaints("modern", f":attention.mask.kind={kind}") == []


def test_a_size_that_is_asked_for_stays() -> None:
    word = "attention.mask={kind = 'window', size = 100}"
    asked = study("modern", f":{word}")
    assert arms(asked, 2e5)[f":{word}"].model.attention.model_dump()["mask"]["size"] == 100
    given = arms(study("modern", ":attention.mask.kind=window"), None)
    assert [run.model.attention.model_dump()["mask"].get("size") for run in given.values()] == [
        None,
        64,
    ]


@pytest.mark.parametrize(("mask", "length"), [*product(CHOICES, (1, 2, 6, 17))])
def test_masks_that_hide_nothing_are_known(mask: masks.Mask, length: int) -> None:
    pattern, at = pattern_of(mask, 2), torch.arange(length)
    head = (torch.arange(2)[:, None, None],) if getattr(pattern, "num_heads", 1) > 1 else ()
    seen = pattern.visible(at[:, None], at, *head).expand(2, length, length)
    lower = torch.ones(length, length, dtype=torch.bool).tril()
    plain = bool((seen == lower).all()) or bool(seen.all())
    is_plain = isinstance(mask, (masks.Causal, masks.Full))
    assert is_full(mask, 2, length) == (plain and not is_plain)
    assert mask.reach > 0 or is_plain or mask == masks.SymmetricWindow(radius=0)
