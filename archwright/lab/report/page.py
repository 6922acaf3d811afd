"""Page and tables of a study, from its `StudyResults`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from archwright.files import atomic_write
from archwright.format import listed
from archwright.lab.design.plan import runs_of
from archwright.lab.design.widths import headline as headline_of_widths
from archwright.lab.procedure.verdict import GROUPS, SMALL, claim_words, group_of
from archwright.lab.report import curves, effects, horizons, learning_rates, sections
from archwright.lab.report import width_charts as widths
from archwright.lab.report.csv_files import write_tables as write_tables
from archwright.lab.results import Effect, Outcome, StudyResults
from archwright.reporting.document import HEADLINE_WORDS, MADE_BY, Page
from archwright.reporting.styles import series_of


def write_page(results: StudyResults, folder: str | Path) -> Path:
    """Write `report.html`, a single file without requests; return its path."""
    path = Path(folder) / "report.html"
    atomic_write(path, study_page(results).html())
    return path


def study_page(results: StudyResults) -> Page:
    """Return the page of a study, which may be incomplete."""
    head = (
        headline_of_widths(results.drifts, HEADLINE_WORDS)
        if results.study.widths
        else headline(results.effects, results.variants[0].name, HEADLINE_WORDS)
    )
    series = series_of([variant.name for variant in results.variants])
    first = widths.widths_section if results.study.widths else effects.effects_section
    made = (
        first(results, series),
        sections.answers_section(results),
        horizons.horizons_section(results, series),
        curves.curves_section(results, series),
        learning_rates.learning_rates_section(results, series),
        curves.lengths_section(results),
        sections.cost_section(results),
        sections.held_section(results),
        sections.changes_section(results),
        sections.runs_section(results),
        sections.reproduce_section(results),
    )
    return Page(
        title=f"{_name(results)}: {head}",
        kicker=f"archwright study {_name(results)}",
        verdict=head,
        verdict_rest=f"{results.verdict.removeprefix(head).lstrip(':;, ')} {results.scope}",
        notice=_notice(results),
        notes=results.notes,
        axes=curves.axes(results),
        sections=[section for section in made if section],
        footer=f"{MADE_BY} from {results.folder}. One file, which requests nothing.",
    )


def _name(results: StudyResults) -> str:
    return results.study.name or Path(results.folder).name


def _notice(results: StudyResults) -> str:
    if results.complete:
        return ""
    study = results.study
    planned = runs_of(study, len(results.variants))
    at_least = "" if not study.tune_lr else "about "
    ended = len(results.runs) + len(results.shorter_runs)
    return (
        f"This study is not complete: {ended} of {at_least}{planned} runs have ended. "
        "All that follows is of these and may still change."
    )


def headline(effects: Sequence[Effect], baseline: str, words: int) -> str:
    """Return the outcomes in at most `words` words: with names if they fit, else as counts."""
    found = list(_headlines(effects, baseline))
    return next((text for text in found if len(text.split()) <= words), found[-1])


def _headlines(effects: Sequence[Effect], baseline: str) -> Iterator[str]:
    """Yield headlines, the shortest and least precise last."""
    if not effects:
        yield "Nothing was compared yet"
        return
    if len(effects) == 1:
        yield claim_words(effects[0], effects[0].variant, baseline)
        small = f", but {SMALL}" * effects[0].within_margin
        superior = effects[0].outcome in ("better", "worse")
        brief = claim_words(effects[0], "the variant", "the baseline")
        brief = f"the variant is {effects[0].outcome}{small}" if superior and small else brief
        yield brief[:1].upper() + brief[1:]
        return
    groups = {g: [e.variant for e in effects if group_of(e) == g] for g in GROUPS}
    groups = {group: names for group, names in groups.items() if names}
    said = (f"{listed(n)} {'are' if len(n) > 1 else 'is'} {group}" for group, n in groups.items())
    yield f"Against {baseline}, {', '.join(said)}"
    counts = Counter(group.partition(" ")[0] for group in map(group_of, effects))
    order = [outcome for outcome in get_args(Outcome) if counts[outcome]]
    yield f"{len(effects)} variants: {', '.join(f'{counts[o]} {o}' for o in order)}"
    first, *others = [o for o in order if o in ("better", "worse")] or order[:1]
    verb = "is" if counts[first] == 1 else "are"
    few = [f"{counts[first]} {verb} {first}", *(f"{counts[o]} {o}" for o in others)]
    yield f"Of {len(effects)} variants, {listed(few)}"
