"""archwright profile: a table whose columns add up, JSON, and mistakes in one line each."""

import json

import pytest

from archwright.cli import main
from tests.cli.typing_commands import error_lines

pytestmark = pytest.mark.slow

SMALL = [
    *("profile", "modern", "dim=32", "num_layers=2", "vocab_size=128"),
    *("attention.num_heads=2", "attention.num_kv_heads=1"),
    *("--length", "32", "--batch-size", "2", "--seconds", "0.01"),
    *("--kernel", "eager", "--precision", "fp32"),
]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    out = capsys.readouterr().out
    first, _, head, *rows = out.splitlines()
    assert "2 sequences of 32 tokens, fp32, eager kernel, cpu" in first
    assert head.split() == [
        "part",
        "ms",
        "share",
        "forward",
        "backward",
        "FLOPs",
        "bytes",
        "FLOP/s",
        "bytes/s",
    ]
    table = rows[: rows.index("")]
    names = [row[: head.index("  ") + 22].split("  ")[0] for row in table]
    expected = ["embedding", "positions", "norms", "attention projections", "attention kernel"]
    expected += [
        "feed-forward",
        "residual adds",
        "head",
        "loss",
        "optimizer",
        "other",
        "whole step",
    ]
    assert names == expected
    times = [float(row[len(name) :].split()[0]) for name, row in zip(names, table, strict=True)]
    assert sum(times[:-1]) == pytest.approx(times[-1], abs=0.1)
    assert "A plain step takes" in out
    assert "norms: " in out.split("A plain step")[1]
    assert len({len(row) for row in table}) == 1  # numbers stand under one another


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernel"] == "eager"
    assert {"name", "forward", "backward", "update", "products", "arithmetic", "num_bytes"} == set(
        found["parts"][0]
    )


MISTAKES = {
    "profile": ["the following arguments are required: MODEL. See archwright profile --help"],
    "profile modren": [
        '"modren": no such preset; see archwright list, or give a file ending in .toml. '
        'Did you mean "modern"?'
    ],
    "profile demo": ['"demo" is a recipe; profile its model'],
    "profile modern dm=256": ['dm: unknown key. Did you mean "dim"?'],
    "profile modern attention.num_kv_heads=3": [
        "attention.num_kv_heads: found 3; expected a divisor of num_heads = 8"
    ],
    "profile modern --batch-size 0 --length 0 --seconds 0 --precision fp32x --kernel flash": [
        "--batch-size: found 0; expected 1 to 1,073,741,824",
        "--length: found 0; expected 1 to 1,073,741,824",
        "--seconds: found 0; expected more than 0",
        '--precision: found "fp32x"; expected one of auto, fp32, bf16, fp16, fp8. Did you mean "fp32"?',
        '--kernel: found "flash"; expected one of auto, eager, sdpa, blockwise.',
    ],
    "profile modern --length many": [
        '--length: found "many"; expected a whole number. See archwright profile --help'
    ],
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_lines(capsys, *words.split()) == MISTAKES[words]


def test_what_does_not_fit_into_memory(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = error_lines(
        capsys, *["profile", "modern", "--batch-size", "100000000", "--precision", "fp32"]
    )
    assert line.startswith("batch_size: a step needs at least ")
