"""The page of a study: the verdict first, then what it stands on."""

from pathlib import Path

from archwright.files import atomic_write
from archwright.lab.headline import headline
from archwright.lab.page import (
    curves,
    effects,
    horizons,
    learning_rates,
    sections,
    widths,
)
from archwright.lab.plan import runs_each
from archwright.lab.results import StudyResults
from archwright.lab.widths import headline as headline_of_widths
from archwright.reporting.document import HEADLINE_WORDS, MADE_BY, Page
from archwright.reporting.styles import series_of


def write_page(results: StudyResults, folder: str | Path) -> Path:
    """Write `report.html` into a folder and return its path. The page is one file that requests nothing."""
    path = Path(folder) / "report.html"
    atomic_write(path, study_page(results).html())
    return path


def study_page(results: StudyResults) -> Page:
    """Lay a study out as a page, whatever of it is done."""
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
        curves.lengths_section(results, series),
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
    planned = round(len(results.variants) * runs_each(study))
    at_least = "" if not study.tune_lr else "about "
    return (
        f"This study is not complete: {len(results.runs)} of {at_least}{planned} runs have ended. "
        "All that follows is of these and may still change."
    )
