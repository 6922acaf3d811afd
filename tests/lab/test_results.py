"""Results at a prompt and in a notebook."""

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archwright.format import signed
from archwright.lab.procedure.standing import Spikes, Standing
from archwright.lab.procedure.verdict import spikes_in_words
from archwright.lab.report.summary import scope_of
from archwright.lab.report.terminal import as_json, print_results
from archwright.lab.results import BestRate, Drift, Interaction, StudyResults, TaskFacts
from archwright.spec.study_spec import StudySpec
from tests.lab.made_results import nothing_yet, several_horizons, spiking, twelve_variants
from tests.tiny import ROOT


def test_results_are_a_line() -> None:
    results = twelve_variants()
    assert repr(results) == f"StudyResults({results.folder}: {results.verdict})"
    assert len(repr(results)) < 1000


def test_a_notebook_shows_the_verdict_and_a_row_for_each_variant() -> None:
    results = twelve_variants()
    html = results._repr_html_()
    assert results.verdict in unescape(html)
    cells = [unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", html)]
    assert cells[::5] == [effect.variant for effect in results.effects]
    assert cells[1::5] == [effect.outcome for effect in results.effects]
    shown = [e.outcome != "inconclusive" for e in results.effects]
    assert {*shown} == {True, False}
    means = [signed(effect.estimate) for effect in results.effects]
    assert cells[2::5] == [mean if known else "–" for mean, known in zip(means, shown, strict=True)]
    assert [cell != "–" for cell in cells[3::5]] == shown
    assert nothing_yet()._repr_html_().count("<td") == 0


def test_its_page_is_the_one_in_its_folder(tmp_path: Path) -> None:
    results = replace(nothing_yet(), folder=str(tmp_path))
    (tmp_path / "report.html").write_text("<p>")
    assert Path(results.report()) == tmp_path / "report.html"


@pytest.mark.parametrize("results", [twelve_variants, several_horizons])
def test_each_sentence_is_printed_once(
    results: Callable[[], StudyResults], capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict on few variants has them already."""
    print_results(results())
    printed = capsys.readouterr().out
    assert {printed.count(effect.sentence) for effect in results().effects} == {1}


def test_the_json_has_spikes_with_their_rate_and_the_first_runs() -> None:
    found = json.loads(as_json(spiking()))
    (spikes,) = found["spikes"]["modern"]
    assert spikes == {"k": 0.63, "seeds": [1, 3], "compared": 5, "halved": True, "lr": 6e-3}
    assert sum(run["lr"] == 6e-3 for run in found["runs"]) == 5


def test_each_key_of_the_json_is_documented() -> None:
    text = (ROOT / "docs" / "how-to.md").read_text("utf-8")
    section = text.partition("## Read a study as numbers")[2].partition("\n## ")[0]
    named = {word for line in section.splitlines() for word in re.findall(r"`(\w+)`", line)}
    found = json.loads(as_json(several_horizons()))
    tables = ("effects", "variants", "runs", "replicates", "held")
    keys = {*found, *(key for name in tables for key in found[name][0])}
    keys |= {*found["effects"][0]["multiplier"], *found["effects"][0]["multiplier"]["horizons"][0]}
    keys |= {f.name for kind in (Interaction, Drift, BestRate, TaskFacts) for f in fields(kind)}
    assert keys <= named


def summarized(steps: int, documents: int) -> Any:
    """A study of 200,000 parameters and 2,000 tokens a step, as far as its scope is read off it."""
    counts = SimpleNamespace(non_embedding=200_000)
    text = SimpleNamespace(num_documents=documents)
    run = SimpleNamespace(data=SimpleNamespace(texts=["notes/a.txt"]))
    base = SimpleNamespace(counts=counts, material=SimpleNamespace(held_out=text), run=run)
    machine = SimpleNamespace(threads=1)
    plan = SimpleNamespace(
        study=StudySpec(),
        baseline=base,
        steps=steps,
        tokens_per_run=steps * 2000,
        decisions=SimpleNamespace(machine=machine),
    )
    return SimpleNamespace(plan=plan, folder="nowhere")


@pytest.mark.parametrize(
    ("steps", "documents", "turns", "alone"),
    [
        (600, 300, False, False),
        (400, 300, True, False),
        (490, 300, True, False),
        (600, 19, False, True),
    ],
)
def test_the_scope_names_short_horizons_and_few_documents(
    steps: int, documents: int, turns: bool, alone: bool
) -> None:
    said = scope_of(summarized(steps, documents))
    assert said.startswith("Measured at 200k non-embedding parameters and ")
    assert " of a.txt on one CPU thread, and for this size" in said
    assert ("no norm is better than RMSNorm at 128k tokens and equal at 1M" in said) == turns
    assert (f"Of this text alone: with {documents} held-out documents" in said) == alone


def test_spikes_name_both_rates() -> None:
    first = Spikes(0.0, (2, 5), 6, halved=True)
    cases = {
        (first,): ["2 of 6 runs of modern spiked at lr 0.06; all were run again at 0.03"],
        (first, Spikes(-1.0, (3,), 6, halved=False)): [
            "2 of 6 runs of modern spiked at lr 0.06; all were run again at 0.03",
            "1 of 6 runs of modern spiked at lr 0.03",
        ],
    }
    for found, words in cases.items():
        now = Standing({}, [], {"modern": {2: (-1.0,)}}, spikes={"modern": found})
        rates = [0.06 * 2**k for k in now.powers("modern")]
        assert [*spikes_in_words(now.spikes, lambda name, rates=rates: rates)] == words
