"""Errors of estimates are those that benchmarks recorded, in words that say their direction where they have one."""

import pytest

from archwright.reporting.estimate_errors import Errors, estimate_errors
from archwright.reporting.estimates import Machines


@pytest.mark.parametrize(
    ("kind", "errors", "words"),
    [
        ("step", (0.09, -0.03, -0.06), "median 6.0 %, largest 9.0 %, of 3 benchmarks on Z80"),
        ("decode", (-0.26, -0.30), "26 to 30 % too fast in all 2 benchmarks on Z80"),
        ("prefill", (0.12, 0.2), "12 to 20 % too slow in all 2 benchmarks on Z80"),
        ("memory", (-0.12, -0.2), "12 to 20 % too low in all 2 benchmarks on Z80"),
    ],
)
def test_errors_in_words(kind: str, errors: tuple[float, ...], words: str) -> None:
    assert Errors(kind, "Z80", errors).sentence == words


def test_each_kind_of_estimate_has_its_own_errors() -> None:
    found = estimate_errors()
    assert {kind: len(each.errors) for kind, each in found.items()} == {
        "memory": 38,
        "step": 6,
        "prefill": 3,
        "decode": 3,
    }
    decode = found["decode"]
    assert decode.record()["least"] == min(decode.errors) < max(decode.errors) < 0
    assert decode.record()["most"] == max(decode.errors)
    assert len({each.errors for each in found.values()}) == 4


def test_two_machines_are_named_and_one_is_not() -> None:
    assert Machines("Z80", "Z80").note == ""
    assert Machines("6502", "Z80").note.startswith("The run was trained on 6502")
    assert "not recorded" in Machines("", "Z80").note
