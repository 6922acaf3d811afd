"""Rules of thumb: each is raised by a model outside its range and by none inside; published choices raise none."""

import math

import pytest

from archwright.model import build
from archwright.planning.rules_of_thumb import RULES_OF_THUMB, Suspicion, suspicions
from archwright.spec.read import load_run, preset_names
from tests.tiny import ROOT

PLAIN = "llama-3-8b"
WINDOW = "model.attention.mask.kind=window"
CASES: dict[str, tuple[list[str], str, float, list[str]]] = {
    "hidden width": (
        ["model.feedforward.hidden_dim=40960"],
        "feedforward",
        40960 / 4096 / (8 / 3),
        ["model.feedforward.hidden_dim=20480"],
    ),
    "shape": (["model.num_layers=12"], "num_layers", 4096 / 12, ["model.num_layers=16"]),
    "depth for its width": (
        ["model.num_layers=120"],
        "num_layers",
        120 / ((math.log(4096) - 5.039) / 0.0555),
        ["model.num_layers=80"],
    ),
    "heads over dim": (
        ["model.attention.head_dim=272"],
        "attention",
        32 * 272 / 4096,
        ["model.attention.head_dim=256"],
    ),
    "width of heads": (
        ["model.attention.head_dim=16", "model.attention.num_heads=256"],
        "attention.head_dim",
        16,
        ["model.attention.head_dim=32", "model.attention.num_heads=128"],
    ),
    "query heads per KV head": (
        ["model.attention.num_kv_heads=1"],
        "attention.num_kv_heads",
        32,
        ["model.attention.num_kv_heads=2"],
    ),
    "vocabulary": (
        ["model.vocab_size=2048"],
        "vocab_size",
        2048 * 4096 / (216e3 * 8192 * (6.98e9 / 68.7e9) ** 0.84),
        ["model.vocab_size=32768"],
    ),
    "tokens per parameter": (["20B"], "tokens", 20e9 / 8.03e9, ["160B"]),
    "weight decay": (
        ["optimizer.weight_decay=1"],
        "optimizer.weight_decay",
        1,
        ["optimizer.weight_decay=0.05"],
    ),
    "dropout": (
        ["model.feedforward.dropout=0.1"],
        "feedforward.dropout",
        0.1,
        ["model.feedforward.dropout=0"],
    ),
    "reach of windows": (
        [WINDOW, "model.attention.mask.size=128"],
        "attention.mask",
        32 * 127 / 8191,
        [WINDOW, "model.attention.mask.size=512"],
    ),
    "balance of experts": (
        ["model.feedforward.kind=experts", "model.feedforward.balance_loss=0"],
        "feedforward",
        0,
        ["model.feedforward.kind=experts", "model.feedforward.balance_loss=0.01"],
    ),
}
"""By rule: changes that raise it, where, the number found, and changes that do not."""
AMOUNTS = {"20B": 20e9, "160B": 160e9}


def raised(name: str, changes: list[str]) -> dict[str, Suspicion]:
    tokens = [AMOUNTS[change] for change in changes if change in AMOUNTS]
    run = load_run(name).override(*(change for change in changes if change not in AMOUNTS))
    model = build(run.model, device="meta")
    return {each.rule.name: each for each in suspicions(run, model, *tokens)}


def test_every_rule_has_a_case() -> None:
    assert [rule.name for rule in RULES_OF_THUMB] == [*CASES]
    for rule in RULES_OF_THUMB:
        assert rule.least <= rule.most
        assert rule.source
        assert rule.strength in ("strong", "moderate", "weak")


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_is_raised_outside_its_range_alone(rule: str) -> None:
    outside, path, number, inside = CASES[rule]
    found = raised(PLAIN, outside)[rule]
    assert found.path == path
    assert found.found == pytest.approx(number, rel=0.01)
    assert found.rule.source in found.line
    assert f"{found.rule.strength} evidence" in found.line
    assert rule not in raised(PLAIN, inside)


def test_the_documentation_has_the_table() -> None:
    text = (ROOT / "docs" / "planning.md").read_text("utf-8")
    for rule in RULES_OF_THUMB:
        row = f"| {rule.name}: {rule.quantity.rstrip(',')} | {rule.usual} | {rule.strength} | {rule.source} |"
        assert row in text, row


@pytest.mark.sampled(fast=6)
@pytest.mark.parametrize("name", preset_names("models"))
def test_a_preset_raises_nothing(name: str) -> None:
    run = load_run(name)
    assert (
        suspicions(run, build(run.model, device="meta"), 20.0 * 1e30) != []
    )  # tokens are no preset's
    assert suspicions(run, build(run.model, device="meta")) == []


def test_what_a_preset_chose_stays_unsaid_while_something_else_changes() -> None:
    assert raised("gemma-2b", ["model.num_layers=16"]) == {}  # hidden_dim is 8 dim, as published
    assert (
        raised("gemma-2b", ["model.feedforward.hidden_dim=14336"]) == {}
    )  # nearer to what is usual
    found = raised("gemma-2b", ["model.feedforward.hidden_dim=32768"])
    assert [*found] == ["hidden width"]


def test_windows_beside_a_layer_that_sees_all_lose_nothing() -> None:
    found = raised("gemma-2-9b", ["model.context_length=1000000"])
    assert "reach of windows" not in found


def test_the_strongest_evidence_comes_first() -> None:
    changes = ["model.num_layers=12", "model.attention.num_kv_heads=1", "optimizer.weight_decay=2"]
    found = [each.rule.strength for each in raised(PLAIN, changes).values()]
    assert found == ["strong", "moderate", "weak"]


def test_ends_that_are_open_are_null() -> None:
    record = raised(PLAIN, CASES["reach of windows"][0])["reach of windows"].record()
    assert record["most"] is None
    assert record["least"] == 1
    assert record["strength"] == "strong"
