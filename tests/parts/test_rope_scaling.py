"""The scalings of rotary positions beside their formulas, in plain Python and complex numbers."""

import cmath
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.model import build
from archwright.parts.positions import Rotary
from archwright.parts.token_layout import token_layout
from archwright.spec import positions as spec
from archwright.spec.model_spec import ModelSpec

HEAD_DIM, THETA, LENGTH = 16, 500.0, 64
"""Of heads, of frequencies, and the length that was trained on."""
SHORT = tuple(1 + i / 10 for i in range(8))
LONG = tuple(2 + i * i for i in range(8))

Frequencies = list[float]


def plain(rotary: int = HEAD_DIM) -> Frequencies:
    return [THETA ** (-2 * i / rotary) for i in range(rotary // 2)]


def linear(factor: float) -> Frequencies:
    return [f / factor for f in plain()]


def dynamic(factor: float, span: int) -> Frequencies:
    span = max(span, LENGTH)
    r = HEAD_DIM
    theta = THETA * (factor * span / LENGTH - (factor - 1)) ** (r / (r - 2))
    return [theta ** (-2 * i / r) for i in range(r // 2)]


def yarn(factor: float, truncate: bool, fast: float = 32.0, slow: float = 1.0) -> Frequencies:
    def pair(beta: float) -> float:
        return HEAD_DIM * math.log(LENGTH / (2 * math.pi * beta)) / (2 * math.log(THETA))

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, HEAD_DIM - 1)
    found = []
    for i, f in enumerate(plain()):
        share = min(1.0, max(0.0, (i - low) / (high - low)))
        found.append(f / factor * share + f * (1 - share))
    return found


def llama3(factor: float, low: float, high: float) -> Frequencies:
    found = []
    for f in plain():
        wavelength = 2 * math.pi / f
        if wavelength < LENGTH / high:
            found.append(f)
        elif wavelength > LENGTH / low:
            found.append(f / factor)
        else:
            t = (LENGTH / wavelength - low) / (high - low)
            found.append(f * ((1 - t) / factor + t))
    return found


def longrope(span: int) -> Frequencies:
    divisors = LONG if span > LENGTH else SHORT
    return [f / d for f, d in zip(plain(), divisors, strict=True)]


def proportional(fraction: float) -> Frequencies:
    turning = int(fraction * HEAD_DIM / 2)
    return [f if i < turning else 0.0 for i, f in enumerate(plain())]


CASES: dict[str, tuple[dict[str, Any], Callable[[int], Frequencies], float]] = {
    "none": ({"kind": "none"}, lambda span: plain(), 1.0),
    "linear": ({"kind": "linear", "factor": 4.0}, lambda span: linear(4.0), 1.0),
    "dynamic": ({"kind": "dynamic", "factor": 3.0}, lambda span: dynamic(3.0, span), 1.0),
    "yarn": ({"kind": "yarn", "factor": 4.0}, lambda span: yarn(4.0, True), 0.1 * math.log(4) + 1),
    "yarn untruncated": (
        {"kind": "yarn", "factor": 4.0, "truncate": False, "beta_fast": 3.0, "beta_slow": 0.5},
        lambda span: yarn(4.0, False, 3.0, 0.5),
        0.1 * math.log(4) + 1,
    ),
    "yarn truncated in its midst": (
        {
            "kind": "yarn",
            "factor": 4.0,
            "beta_fast": 3.0,
            "beta_slow": 0.5,
            "attention_factor": 0.7,
        },
        lambda span: yarn(4.0, True, 3.0, 0.5),
        0.7,
    ),
    "llama3": (
        {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        lambda span: llama3(8.0, 1.0, 4.0),
        1.0,
    ),
    "llama3 with a step": (
        {"kind": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
        lambda span: llama3(16.0, 1.0, 1.0),
        1.0,
    ),
    "longrope": (
        {"kind": "longrope", "short": SHORT, "long": LONG, "factor": 4.0},
        longrope,
        math.sqrt(1 + math.log(4) / math.log(LENGTH)),
    ),
    "longrope with a factor of its own": (
        {"kind": "longrope", "short": SHORT, "long": LONG, "attention_factor": 1.5},
        longrope,
        1.5,
    ),
    "proportional": ({"kind": "proportional"}, lambda span: proportional(0.5), 1.0),
}
"""Options, the frequencies of a text of a length, and what the turned vector is multiplied by."""
ALL = pytest.mark.parametrize("case", CASES)
FOLLOWING = pytest.mark.parametrize("case", ["dynamic", "longrope"])


def rotary(case: str, pairing: str = "half") -> Rotary:
    """Return the part of a model whose context_length stands for the length that was trained on."""
    options = CASES[case][0]
    fraction = 0.5 if options["kind"] == "proportional" else 1.0
    model = ModelSpec.model_validate(
        {
            "dim": 32,
            "num_layers": 1,
            "context_length": LENGTH,
            "attention": {"kind": "softmax", "num_heads": 2},
            "position": {
                "kind": "rope",
                "theta": THETA,
                "pairing": pairing,
                "fraction": fraction,
                "scaling": options,
            },
        }
    )
    part = build(model).rotaries["rotary_0"]
    assert isinstance(part, Rotary)
    return part.double()


def check(part: Rotary, case: str, x: Tensor, turned: Tensor, at: int, span: int) -> None:
    """Compare one head's vector with its pairs, turned as complex numbers."""
    _, frequencies, factor = CASES[case]
    half = part.spec.pairing == "half"
    for i, f in enumerate(frequencies(span)):
        a, b = (i, i + HEAD_DIM // 2) if half else (2 * i, 2 * i + 1)
        z = factor * complex(x[a], x[b]) * cmath.exp(1j * at * f)
        # frequencies are float32 numbers
        assert (turned[a].item(), turned[b].item()) == pytest.approx((z.real, z.imag), abs=3e-5)


@pytest.mark.sampled(fast=8)
@ALL
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("span", [40, LENGTH, LENGTH + 1, 150])
def test_formula(case: str, pairing: str, span: int) -> None:
    part = rotary(case, pairing)
    torch.manual_seed(0)
    x = torch.randn(1, span, 2, HEAD_DIM, dtype=torch.float64)
    where = token_layout(torch.zeros(1, span, dtype=torch.long))
    turned = part.rotate(x, part(where.position_ids_or_range(), where.lengths_so_far_or_end()))
    for at in {0, 1, 7, span - 1}:
        for head in range(2):
            check(part, case, x[0, at, head], turned[0, at, head], at, span)


@FOLLOWING
@pytest.mark.parametrize("span", [LENGTH - 1, LENGTH, LENGTH + 1, LENGTH + 2])
def test_a_text_ends_with_its_last_position_where_nothing_else_is_said(
    case: str, span: int
) -> None:
    part, positions = rotary(case), torch.arange(span)[None]
    for found, expected in zip(
        part(positions), part(positions, torch.full((1, span), span)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@FOLLOWING
def test_each_row_follows_its_own_length(case: str) -> None:
    """One is padded on the left, one on the right, one is whole; two are longer than was trained on."""
    width = 100
    real = torch.ones(3, width, dtype=torch.bool)
    real[0, :70], real[1, 80:] = False, False
    part, where = rotary(case), token_layout(real.long(), padding_mask=real)
    x = torch.randn(3, width, 1, HEAD_DIM, dtype=torch.float64)
    turned = part.rotate(x, part(where.position_ids_or_range(), where.lengths_so_far_or_end()))
    for row, (span, first) in enumerate([(30, 70), (80, 0), (100, 0)]):
        for at in (0, 3, span - 1):
            column = first + at
            check(part, case, x[row, column, 0], turned[row, column, 0], at, span)


@FOLLOWING
def test_each_packed_document_follows_its_own_length(case: str) -> None:
    lengths = [30, LENGTH + 26, LENGTH, LENGTH + 1]
    ids = torch.cat([torch.full((n,), i % 2) for i, n in enumerate(lengths)])[None]
    part, where = rotary(case), token_layout(ids, segment_ids=ids)
    x = torch.randn(1, ids.shape[1], 1, HEAD_DIM, dtype=torch.float64)
    turned = part.rotate(x, part(where.position_ids_or_range(), where.lengths_so_far_or_end()))
    for i, span in enumerate(lengths):
        for at in (0, 5, span - 1):
            column = sum(lengths[:i]) + at
            check(part, case, x[0, column, 0], turned[0, column, 0], at, span)


@ALL
def test_which_angles_follow_the_length(case: str) -> None:
    part = rotary(case)
    assert part.follows_length == case.startswith(("dynamic", "longrope"))


def test_numbers_that_the_model_decides_are_asked_for() -> None:
    with pytest.raises(ValueError, match='scaling: found "auto"; give original_length'):
        Rotary(spec.RoPE(scaling=spec.YaRN()), HEAD_DIM)
