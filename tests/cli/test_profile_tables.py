"""What `archwright profile` prints of several models, and what it counts without a measurement."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from archwright.cli import main
from archwright.cli.profile_tables import side_by_side
from archwright.format import flops
from archwright.model import build
from archwright.planning.cost import flops_per_token
from archwright.spec.machine import MachineSpec
from archwright.spec.read import load
from archwright.training.profiling import PartProfile, Profile
from tests.cli.typing_commands import error_lines

LAYER_NORM = PartProfile("norms", 2e-3, 3e-3, 0.0, 0.0, arithmetic=8e6, num_bytes=1e7)
RMS_NORM = PartProfile("norms", 6e-3, 9e-3, 0.0, 0.0, arithmetic=4e6, num_bytes=4e7)
HEAD = PartProfile("head", 1e-3, 2e-3, 0.0, products=1e9, arithmetic=0.0, num_bytes=1e6)


def profiled(*parts: PartProfile) -> Profile:
    return Profile(parts, 0.02, 3, 2, 32, 1000, MachineSpec(), 1e11)


def test_what_computes_less_and_takes_longer_is_said() -> None:
    """RMSNorm takes three times as long here, for half the FLOPs, as it moves four times the bytes."""
    lines = [*side_by_side({"a": profiled(LAYER_NORM, HEAD), "b": profiled(RMS_NORM, HEAD)})]
    assert lines[0].split() == ["ms", "a", "b"]
    assert lines[1].split() == ["norms", "5.00", "15.00"]
    assert lines[2].split() == ["head", "3.00", "3.00"]
    assert lines[3].split() == ["whole", "step", "8.00", "18.00"]
    (sentence,) = lines[lines.index("") + 1 :]
    assert sentence.startswith(
        "norms: b takes 3 times as long as a, for 0.5 times the FLOPs and 4 times the bytes."
    )
    assert "more passes over memory" in sentence


@pytest.mark.parametrize(
    "other",
    [
        replace(RMS_NORM, forward=2e-3, backward=3e-3),  # as fast
        replace(RMS_NORM, arithmetic=9e6),  # slower, and computes more
    ],
)
def test_nothing_is_said_of_what_is_as_expected(other: PartProfile) -> None:
    lines = [*side_by_side({"a": profiled(LAYER_NORM), "b": profiled(other)})]
    assert "" not in lines


def test_a_model_of_any_size_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Matrix products and scores are those of planning; norms come on top, and are less than a hundredth."""
    assert (
        main(["profile", "llama-3-70b", "--dry-run", "--batch-size", "2", "--length", "4096"]) == 0
    )
    first, _, head, *rows = capsys.readouterr().out.splitlines()
    assert (
        first == "llama-3-70b: 70.6B parameters, 2 sequences of 4,096 tokens; counted, not measured"
    )
    assert head.split()[:4] == ["part", "forward", "backward,", "update"]
    table = {row[:30].split("  ")[0]: row for row in rows[: rows.index("")]}
    expected = 2 * 4096 * flops_per_token(build(load("llama-3-70b"), device="meta"), 4096)
    forward, backward = re.findall(r"\d\.\d+e\d+", table["all"])
    assert float(forward) + float(backward) == pytest.approx(expected, rel=0.01)
    parts = [
        float(re.findall(r"\d\.\d+e\d+", row)[0]) for name, row in table.items() if name != "all"
    ]
    assert flops(sum(parts))[:3] == forward[:3]


def counted(capsys: pytest.CaptureFixture[str], words: str) -> Any:
    assert main(["profile", *words.split(), "--dry-run", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    record = counted(capsys, "modern --batch-size 2 --length 64")
    of = {part["name"]: part["evidence"] for part in record["parts"]}
    assert of["attention between tokens"] == of["feed-forward"] == "counted"
    assert of["optimizer"] == of["norms and sums"] == record["total"]["evidence"] == "estimated"
    assert (record["name"], record["precision"]) == ("modern", "bf16")
    assert (record["batch_size"], record["length"]) == (2, 64)
    for key in ("flops", "bytes"):
        sums = sum(part[key] for part in record["parts"])
        assert sums == pytest.approx(record["total"][key])
    both = counted(capsys, "modern :attention.num_kv_heads=1")
    assert [each["name"] for each in both] == ["modern", ":attention.num_kv_heads=1"]


def test_a_dry_run_is_of_the_precision_and_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    usual = counted(capsys, "modern")
    wide, eager = (
        counted(capsys, "modern --precision fp32"),
        counted(capsys, "modern --kernel eager"),
    )
    # An optimizer's numbers have 32 bits in any case, as has the stream under autocast; casts are saved.
    assert 1.1 < wide["total"]["bytes"] / usual["total"]["bytes"] < 2
    assert wide["total"]["flops"] == pytest.approx(usual["total"]["flops"], rel=0.01)
    scores = "attention between tokens"
    (narrow,), (written,) = ([p for p in r["parts"] if p["name"] == scores] for r in (usual, eager))
    assert written["bytes"] > 2 * narrow["bytes"]
    assert main(["profile", "modern", "--dry-run", "--precision", "fp32", "--kernel", "eager"]) == 0
    text = capsys.readouterr().out
    assert "Bytes in fp32," in text
    assert "attention wrote its scores and read them again" in text


def test_a_dry_run_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "modern", ":attention.num_kv_heads=1", "--dry-run"]) == 0
    titles = [
        line for line in capsys.readouterr().out.splitlines() if "counted, not measured" in line
    ]
    assert [title.partition(": ")[0] for title in titles] == ["modern", ":attention.num_kv_heads=1"]


@pytest.mark.parametrize("words", ["profile gpt-2 --dry-run --length 4096"])
def test_a_context_beyond_positions_is_one_line(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_lines(capsys, *words.split()) == [
        "context: found 4096; expected at most 1024, where the learned positions of gpt-2 end"
    ]


@pytest.mark.slow
def test_two_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # others are at work, too
    words = [
        "dim=32",
        "num_layers=1",
        "vocab_size=64",
        "attention.num_heads=2",
        "attention.num_kv_heads=1",
    ]
    options = [
        "--length",
        "16",
        "--batch-size",
        "2",
        "--seconds",
        "0.01",
        "--kernel",
        "eager",
        "--precision",
        "fp32",
    ]
    assert main(["profile", "modern", ":norm.kind=layer", *words, *options]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["ms", "modern", ":norm.kind=layer"]
    names = [row.split("  ")[0] for row in rows]
    assert {"norms", "feed-forward", "whole step", "plain step"} <= {*names}
