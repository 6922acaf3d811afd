"""Results at a prompt and in a notebook."""

import json
import re
from dataclasses import fields, replace
from html import unescape
from pathlib import Path

import pytest

from archwright.format import signed
from archwright.lab.report.terminal import as_json, print_results
from archwright.lab.results import BestRate, Drift, Interaction, TaskFacts
from tests.lab.made_results import nothing_yet, several_horizons, twelve_variants
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
    means = [signed(effect.mean) for effect in results.effects]
    assert cells[2::5] == [mean if known else "–" for mean, known in zip(means, shown, strict=True)]
    assert [cell != "–" for cell in cells[3::5]] == shown
    assert nothing_yet()._repr_html_().count("<td") == 0


def test_its_page_is_the_one_in_its_folder(tmp_path: Path) -> None:
    results = replace(nothing_yet(), folder=str(tmp_path))
    (tmp_path / "report.html").write_text("<p>")
    assert Path(results.report()) == tmp_path / "report.html"


def test_of_several_variants_those_that_are_inconclusive_say_what_would_decide(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = twelve_variants()
    advised = [
        replace(e, sentence=f"{e.variant}, about 3 more seeds would tell.") for e in results.effects
    ]
    print_results(replace(results, effects=advised))
    printed = capsys.readouterr().out
    for effect in advised:
        assert (effect.sentence in printed) == (effect.outcome == "inconclusive")
    assert any(e.outcome == "inconclusive" for e in advised)


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
