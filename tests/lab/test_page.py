"""The page of a study: what it says, in which order, whatever was found; and its tables, digit for digit."""

import csv
import json
import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from archwright.lab.procedure.sweep import replicate
from archwright.lab.procedure.verdict import DIVERGED, effects
from archwright.lab.report.curves import runs_at_best
from archwright.lab.report.learning_rates import best_lr
from archwright.lab.report.page import study_page, write_page, write_tables
from archwright.lab.report.terminal import print_results
from archwright.lab.results import StudyResults
from archwright.reporting.document import HEADLINE_WORDS, Chart, Facts, Page, Table
from archwright.spec.study_spec import StudySpec
from tests.lab import made_results as made

NASTY = "</script><script>alert(1)</script> <b>$ink</b> %{x} {{ 7 * 7 }} \"'&"
EVERY: list[Callable[[], StudyResults]] = [
    made.two_variants,
    made.several_horizons,
    made.twelve_variants,
    made.spiking,
    made.fixed_rates,
    made.incomplete,
    made.nothing_yet,
]


def titles(page: Page) -> list[str]:
    """Return the titles of a page's sections."""
    return [section.title for section in page.sections]


def chart(page: Page, name: str) -> Chart:
    """Return the chart of that name."""
    return next(chart for chart in page.charts if chart.name == name)


def table(page: Page, section: str, number: int = 0) -> Table:
    """Return a table of a section."""
    blocks = next(s.blocks for s in page.sections if s.title == section)
    return [block for block in blocks if isinstance(block, Table)][number]


def cells(page: Page, section: str) -> dict[str, str]:
    """Return the first row of a section's first table by its head."""
    found = table(page, section)
    return dict(zip(found.head, found.rows[0].cells, strict=True))


def rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_has_its_order() -> None:
    assert titles(study_page(made.twelve_variants())) == [
        "Effects",
        "Loss curves",
        "Learning rates",
        "Longer texts",
        "Speed and memory",
        "Controlled",
        "Variants",
        "Runs",
        "Reproduce",
    ]
    assert "Longer texts" not in titles(study_page(made.two_variants()))
    assert titles(study_page(made.several_horizons()))[:2] == ["Effects", "Compute"]


def test_the_page_has_the_bytes_of_a_cache() -> None:
    results = made.two_variants()
    first, *others = results.variants
    results = replace(results, variants=[replace(first, cache_bytes=65_536), *others])
    shown = table(study_page(results), "Speed and memory")
    assert shown.head[-1] == "Cache of a sequence"
    assert [row.cells[-1] for row in shown.rows] == ["65.5 kB", "–"]


def test_compute_is_said_of_the_lower_loss() -> None:
    page = study_page(made.several_horizons())
    found = table(page, "Compute")
    assert [row.cells for row in found.rows] == [
        ("gelu", "modern", "gelu", "less than 0.26", ""),
        ("alibi", "alibi", "modern", "0.72", "0.60 to 0.85"),
    ]
    assert [row.mark for row in found.rows] == ["beyond the horizons that were trained", ""]
    points = chart(page, "horizons").saved
    assert points["tokens"] == [100_000, 200_000, 400_000] * 2
    assert points["mean"] == [0.09, 0.07, 0.06, -0.09, -0.06, -0.05]


def test_runs_that_spiked_stand_beside_those_that_count(tmp_path: Path) -> None:
    results = made.spiking()
    page = study_page(results)
    assert (
        "2 of 5 runs of modern spiked at lr 0.006; all were run again at 0.003."
        in page.verdict_rest
    )
    states = [row.cells[4] for row in table(page, "Runs").rows]
    assert states.count("spiked, run again at a lower rate") == 2
    assert states.count("done, run again at a lower rate") == 3
    assert states.count("done") == 10
    write_tables(results, tmp_path)
    lines = rows(tmp_path / "runs.csv")
    assert [line["counts"] for line in lines] == ["False"] * 5 + ["True"] * 10
    assert {run.lr for run in runs_at_best(results, "modern")} == {3e-3}


def test_curves_go_no_higher_than_the_initial_loss() -> None:
    """A first evaluation of 30 nats would make all curves one line."""
    results = made.two_variants()
    first, *others = results.runs
    high = [replace(first.curve[0], loss=30.0), *first.curve[1:]]
    results = replace(
        results, runs=[replace(r, curve=high if r.seed == 0 else r.curve) for r in (first, *others)]
    )
    for name in ("loss", "difference"):
        for drawn in chart(study_page(results), name).traces:
            assert max(map(abs, drawn["y"])) <= made.INITIAL_LOSS


def test_page_and_terminal_have_one_count_of_runs_and_seeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A study of five seeds whose pairs ended after three, with two runs of a quarter of the tokens."""
    found = made.two_variants()
    short = [
        replace(run, seed=seed, tokens=found.tokens_per_run // 4)
        for seed, run in enumerate(found.runs[:2])
    ]
    ended = [replace(e, seeds=e.seeds[:3], differences=e.differences[:3]) for e in found.effects]
    found = replace(found, shorter_runs=short, effects=ended)
    page, number = study_page(found), len(found.runs) + 2
    print_results(found)
    assert f"{number} runs in " in capsys.readouterr().out
    listed = table(page, "Runs")
    assert (len(listed.rows), listed.folded) == (number, f"All {number} runs with their commands")
    assert listed.rows[-1].cells[4] == "done, 25 % of the tokens"
    facts = next(s.blocks[0] for s in page.sections if s.title == "Controlled")
    assert isinstance(facts, Facts)
    seeds = next(fact for fact in facts.groups[""] if fact.label == "Seeds")
    assert (seeds.value, seeds.note) == ("3", "compared in pairs, of 5 planned")
    assert cells(page, "Effects")["Seeds"] == "3"


@pytest.mark.parametrize("results", EVERY)
def test_whatever_was_found_is_a_page(results: Callable[[], StudyResults], tmp_path: Path) -> None:
    found = results()
    path = write_page(found, tmp_path)
    html = unescape(path.read_text())
    assert path == tmp_path / "report.html"
    page = study_page(found)
    assert len(page.verdict.split()) <= HEADLINE_WORDS
    head = html.index("<h1>")
    assert found.verdict.removeprefix(page.verdict).lstrip(":, ") in html[head:]
    assert head < html.index(found.scope, head) < html.index("<main>")
    assert ("This study is not complete" in html) == (not found.complete)
    for said in (*found.notes, found.command, *(run.command for run in found.runs)):
        assert said in html
    names = [c["name"] for c in page_data(path.read_text())["charts"]]
    assert len(names) == len(set(names))


def page_data(html: str) -> dict[str, Any]:
    """Return the data embedded in a page, which has to be strict JSON."""
    found = re.search(r'id="page-data">(.*?)</script>', html, re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_an_effect_is_drawn_and_listed_as_it_was_found() -> None:
    results = made.two_variants()
    effect, page = results.effects[0], study_page(results)
    seeds, mean = chart(page, "effects").traces
    assert list(seeds["x"]) == list(effect.differences)
    assert mean["x"] == [effect.estimate]
    ends = (
        mean["x"][0] - mean["error_x"]["arrayminus"][0],
        mean["x"][0] + mean["error_x"]["array"][0],
    )
    assert ends == pytest.approx((effect.interval.low, effect.interval.high))
    shapes = chart(page, "effects").layout["shapes"]
    assert [(s["x0"], s["x1"]) for s in shapes] == [
        (-effect.margin, -effect.margin),
        (effect.margin, effect.margin),
        (0, 0),
    ]
    said = cells(page, "Effects")
    assert said["Nats per token"] == f"{effect.estimate:+.4f}"
    assert said["Naive mean"] == f"{effect.mean:+.4f}"
    assert said["Outcome"] == effect.outcome
    baseline = [r.loss for r in results.replicates if r.variant == "modern"]
    share = 100 * effect.estimate / (sum(baseline) / len(baseline))
    assert said["Of the baseline's loss"] == f"{share:+.1f} %"


def test_the_numbers_of_two_seeds_are_those_of_a_pocket_calculator() -> None:
    """Losses 3.50 and 3.52 beside 3.29 and 3.30: d = -0.21, -0.22, so that mean d = -0.215 and s = 0.01 / sqrt(2),
    s / sqrt(2) = 0.005. Of the error of 0.05 a fifth is kept back: Student's t of one degree of freedom is 15.8945 for
    0.04. The baseline's mean is 3.51."""
    one, two = made.TWELVE[:2]
    losses = {(one, 0): 3.50, (one, 1): 3.52, (two, 0): 3.29, (two, 1): 3.30}
    results = made.results_of(made.Made({one: 0.0, two: 0.0}, seeds=2, grid=(3e-3,), fixed=True))
    runs = [
        replace(run, loss=losses[run.variant, run.seed], bits_per_byte=losses[run.variant, run.seed] / 2)
        for run in results.runs
    ]  # fmt: skip
    pairs = [replicate([run]) for run in runs]
    found = effects(pairs, results.study, one, runs=runs, **made.judged(pairs, results.study, one))
    said = cells(study_page(replace(results, runs=runs, effects=found)), "Effects")
    estimate = float(said.pop("Nats per token").replace("−", "-"))
    assert -0.215 <= estimate < -0.2149
    assert said == {
        "Variant": two,
        "Outcome": "better",
        "Naive mean": "−0.2150",
        "95 %": "−0.2945 to −0.1355",
        "Of the baseline's loss": "−6.1 %",
        "95 %, of the loss": "−8.4 % to −3.9 %",
        "Bits per byte": "−0.1075",
        "Seeds": "2",
    }


def test_unknown_numbers_make_a_page_too() -> None:
    results = made.two_variants()
    nan = float("nan")
    nothing = replace(results.effects[0].interval, low=nan, high=nan)
    unknown = {"mean": nan, "estimate": nan, "margin": nan, "differences": (nan,)}
    effect = replace(results.effects[0], **unknown, seeds=(0,), interval=nothing)  # type: ignore[arg-type]
    failed = [replace(run, failed="lost", loss=nan, curve=()) for run in results.runs]
    slow = [replace(run, tokens_per_second=0.0, seconds=nan) for run in results.runs]
    diverged = [replace(run, diverged=True, curve=run.curve[:1]) for run in results.runs]
    lost = replace(results.replicates[0], loss=nan, lr=nan)
    for odd in (
        replace(results, effects=[effect], replicates=[lost, *results.replicates[1:]]),
        replace(results, runs=failed, replicates=(), effects=()),
        replace(results, runs=slow, grids={}, held=(), seconds=nan, predicted_seconds=nan),
        replace(results, runs=diverged, replicates=(), effects=()),
        replace(results, runs=results.runs[:1], replicates=(), effects=(), complete=False),
    ):
        assert "</html>\n" in study_page(odd).html()


def test_a_reservation_stands_by_its_effect() -> None:
    results = made.two_variants()
    reserved = replace(results.effects[0], caveats=("no power", "noisy"))
    page = study_page(replace(results, effects=[reserved]))
    assert table(page, "Effects").rows[0].mark == "no power; noisy"


def test_what_learnt_nothing_has_no_number_to_be_read() -> None:
    results = made.two_variants()
    stuck = replace(results.effects[0], caveats=(f"gelu {DIVERGED}",))
    page = study_page(replace(results, effects=[stuck]))
    row = table(page, "Effects").rows[0]
    assert {*row.cells[2:-1]} == {"–"}
    assert row.cells[-1] == "5"
    assert "effects" not in {chart.name for chart in page.charts}


def test_what_is_inconclusive_has_no_number_and_no_interval() -> None:
    results = made.twelve_variants()
    page = study_page(results)
    drawn = {trace["name"] for trace in chart(page, "effects").traces if "error_x" in trace}
    for effect, row in zip(results.effects, table(page, "Effects").rows, strict=True):
        known = effect.outcome != "inconclusive"
        assert ({*row.cells[2:-1]} == {"–"}) == (not known)
        assert (effect.variant in drawn) == known
    assert 0 < len(drawn) < len(results.effects)


def test_curves_are_means_over_seeds_at_the_best_rate() -> None:
    results = made.two_variants()
    mean = chart(study_page(results), "loss").traces[2]
    found = [run for run in results.runs if run.variant == "modern"]
    assert best_lr(found) == 3e-3
    runs = [run for run in found if run.lr == 3e-3]
    for i, value in enumerate(mean["y"]):
        assert value == pytest.approx(sum(run.curve[i].loss for run in runs) / 5)
    assert mean["along"]["seconds"][-1] == pytest.approx(sum(r.curve[-1].seconds for r in runs) / 5)


def test_curves_are_of_the_runs_that_are_compared() -> None:
    """Those that place the rate are evaluated at their ends alone: a mean over both would jump there."""
    results = made.two_variants()
    study = results.study.model_copy(update={"tuning_seeds": 2})
    first = study.tuning_seed_numbers[0]
    moved = [replace(r, seed=first + r.seed) if r.seed <= 1 else r for r in results.runs]
    results = replace(results, runs=moved)
    mean = chart(study_page(replace(results, study=study)), "loss").traces[2]
    at = [run for run in results.runs if run.variant == "modern" and run.lr == 3e-3]
    runs = [run for run in at if run.seed < first]
    assert len(runs) == 3
    assert mean["y"][-1] == pytest.approx(sum(run.curve[-1].loss for run in runs) / 3)
    # A variant that has no others shows these.
    alone = replace(results, study=study, runs=[run for run in moved if run.seed >= first])
    assert len(runs_at_best(alone, "modern")) == 2


def test_differences_are_paired_by_seed() -> None:
    results = made.two_variants()
    line = chart(study_page(results), "difference").traces[-1]
    at = {(r.variant, r.seed): r.curve[-1].loss for r in results.runs if r.lr == 3e-3}
    paired = [at["gelu in place of swiglu", seed] - at["modern", seed] for seed in range(5)]
    assert line["y"][-1] == pytest.approx(sum(paired) / 5)


def test_what_diverged_is_marked_and_draws_no_mean() -> None:
    results = made.incomplete()
    tuning = results.study.model_copy(update={"first_seed": 0, "tuning_seeds": 5})
    page = study_page(replace(results, study=tuning))
    traces = {trace["name"]: trace for trace in chart(page, "lr").traces}
    assert traces["modern, diverged"]["x"] == [9e-3, 9e-3]
    assert math.isnan(traces["modern"]["y"][-1])
    assert max(y for t in traces.values() for y in t["y"] if y < 100 and t.get("yaxis") != "y2") < 3
    assert cells(page, "Learning rates")["Diverged"] == "2 of 15 runs"
    states = [row.cells[4] for row in table(page, "Runs").rows]
    assert states.count("diverged") == 2
    assert states.count("failed: out of memory") == 1


def test_the_study_can_be_read_back() -> None:
    results = made.two_variants()
    text = study_page(results).sections[-1].blocks[-1].text  # type: ignore[union-attr]
    assert StudySpec.model_validate(tomllib.loads(text)) == results.study


def test_names_are_only_text() -> None:
    results = made.results_of(made.Made({NASTY: 0.0, NASTY + "2": 0.01}, lengths=(64, 128)))
    texts = {"verdict": NASTY, "scope": NASTY, "notes": (NASTY,), "command": NASTY}
    html = study_page(replace(results, **texts, folder=NASTY)).html()  # type: ignore[arg-type]
    assert "<script>alert" not in html
    assert (
        len(
            re.findall(r"<script[ >]", re.sub(r"<script>\n/\*\*.*?</script>", "", html, flags=re.S))
        )
        <= 3
    )
    assert "49" not in re.findall(r"<h1>.*?</h1>", html, re.S)[0]
    for trace in (t for c in page_data(html)["charts"] for t in c["traces"]):
        said = trace["name"] + str(trace.get("hovertemplate", "")).replace("<br>", "")
        assert "<b>" not in said
        assert "</script>" not in said


@pytest.mark.parametrize("results", EVERY)
def test_tables_hold_every_number_as_it_was(
    results: Callable[[], StudyResults], tmp_path: Path
) -> None:
    found = results()
    paths = write_tables(found, tmp_path / "new")
    known = {
        "runs.csv": found.runs,
        "curves.csv": any(run.curve for run in found.runs),
        "replicates.csv": found.replicates,
        "effects.csv": found.effects,
        "horizons.csv": any(e.multiplier for e in found.effects),
        "interactions.csv": found.interactions,
    }
    assert [path.name for path in paths] == [name for name, there in known.items() if there]
    written = {path.stem: rows(path) for path in paths}
    runs, points, replicates, effects = (
        written.get(name, []) for name in ("runs", "curves", "replicates", "effects")
    )
    for lines, things in (
        (runs, found.runs),
        (replicates, found.replicates),
        (effects, found.effects),
    ):
        assert len(lines) == len(things)
        for line, thing in zip(lines, things, strict=True):
            for name in line.keys() & vars(thing).keys() - {"seeds", "differences", "caveats"}:
                assert same(line[name], getattr(thing, name)), name
    assert [float(point["loss"]) for point in points] == pytest.approx(
        [p.loss for run in found.runs for p in run.curve], rel=0, abs=0, nan_ok=True
    )
    for line, effect in zip(effects, found.effects, strict=True):
        assert tuple(map(float, line["differences"].split())) == effect.differences
        assert (float(line["low"]), float(line["high"])) == (
            effect.interval.low,
            effect.interval.high,
        )
    for line, run in zip(runs, found.runs, strict=True):
        assert line["role"] == "compared"
        in_grid = run.lr in found.grids.get(run.variant, ())
        assert line["counts"] == str(found.counts(run) and (in_grid or not found.study.tune_lr))
        lengths = {int(k.split("_")[-1]): float(v) for k, v in line.items() if "_at_" in k}
        assert lengths == run.lengths


def same(text: str, value: object) -> bool:
    """Tell whether a cell reads back as the value."""
    if isinstance(value, float):
        return float(text) == value or (math.isnan(value) and math.isnan(float(text)))
    return text == str(value)
