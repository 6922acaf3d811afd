"""What `archwright plan` prints: pages, tables, JSON; and a line for each mistake."""

import json
import re

import pytest

from archwright.cli import main
from tests.cli.typing_commands import said
from tests.tiny import ROOT


def out(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(words.split()) == 0
    return capsys.readouterr().out


def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(
        capsys,
        "plan llama-3-70b --hardware h200 --devices 64 --tokens 15T --context 8192 --batch 4M --price 3",
    )
    assert text.startswith("llama-3-70b: 64 x NVIDIA H200 SXM, bf16\n")
    for line in (
        r"parameters +70.6B +counted",
        r"FLOPs per token +4.49e11 +counted, forward and backward",
        r"cache per token +328 kB +counted, in 16 bits",
        r"tokens +15T +3,750,000 steps",
        r"device hours +3.78M to 6.31M +estimated",
        r"price +11.4M to 18.9M +estimated, at 3 an hour",
        r"fits +FSDP, checkpointing full +estimated",
        r"feed-forward +56.4B +80 % +1.13e11 +2.25e11 +75 %",
        r"writing +\d+ tokens/s +a bound: one text, after the context",
    ):
        assert re.search(line, text), line


def test_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "plan llama-3-70b :attention.num_kv_heads=64 llama-3-8b")
    lines = {line[:20].strip(): line.split() for line in text.splitlines()}
    assert lines["cache per token"][-6:] == ["328", "kB", "2.62", "MB", "131", "kB"]


LATENT = (
    "attention.kind=latent,attention.query_rank=1536,attention.kv_rank=512,"
    "attention.nope_head_dim=128,attention.rope_head_dim=64,attention.value_head_dim=128"
)


def test_four_attentions_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers per token and layer in 16 bits: two for each key-value head and coordinate, or latent and rotary key."""
    words = (
        f"plan llama-3-70b :attention.num_kv_heads=64 :attention.num_kv_heads=1 :{LATENT} --json"
    )
    records = json.loads(out(capsys, words))
    per_layer = [record["kv_cache_bytes_per_token"] / 80 / 2 for record in records]
    assert per_layer == [2 * 8 * 128, 2 * 64 * 128, 2 * 128, 512 + 64]
    assert [record["name"] for record in records[:2]] == [
        "llama-3-70b",
        ":attention.num_kv_heads=64",
    ]


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(out(capsys, "plan mixtral-8x7b optimizer.kind=muon --json"))
    text = (ROOT / "docs" / "planning.md").read_text("utf-8").partition("## `--json`")[2]
    documented = [
        key
        for line in text.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`(\w+)`", line.split("|")[1])
    ]
    assert documented == [*record]
    assert record["active_parameters"] < record["parameters"]
    assert sum(record["parameters_by_part"].values()) == record["parameters"]
    memory = record["training_memory_bytes_by_part"]
    assert sum(memory.values()) == pytest.approx(record["training_memory_bytes"])
    assert record["evidence"].keys() <= record.keys()


def test_a_model_that_sees_what_follows_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan modern encoder.kind=stack cross_attention.kind=softmax"
    assert re.search(r"serving +does not fit, or keeps no cache", out(capsys, words))


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("plan", ["the following arguments are required: WHAT. See archwright plan --help"]),
        ("plan dim=64", ["plan what? Name a model first, such as: archwright plan llama-3-8b"]),
        (
            "plan gpt-2 --context 4096",
            [
                "context: found 4096; expected at most 1024, where the learned positions of gpt-2 end"
            ],
        ),
        ("plan modern --devices 0", ["devices: found 0; expected 1 to 16,777,216"]),
        (
            "plan modern --tokens=-1T",
            ['tokens: found "-1T"; expected a number such as 15T, 300B or 20xparams'],
        ),
        ("plan modern modern", ['"modern" is named twice']),
        ("plan modern dmi=64", ['dmi: unknown key. Did you mean "dim"?']),
    ],
)
def test_a_mistake_is_one_line(
    words: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, *words.split()) == lines


def test_an_unknown_device_is_one_line_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = said(capsys, "plan", "modern", "--hardware", "h20")
    assert line.endswith('Did you mean "h200"?')
