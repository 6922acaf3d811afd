"""Chart of the compute multiplier and of differences by number of training tokens."""

from collections.abc import Sequence

from archwright import format as fmt
from archwright.lab.procedure.verdict import by_loss, compute_words
from archwright.lab.report.curves import ZERO, columns_of, error_bars
from archwright.lab.results import Effect, Multiplier, StudyResults
from archwright.reporting.document import Chart, Key, Row, Section, Series, Table
from archwright.reporting.styles import short_names, shortened, trace


def horizons_section(results: StudyResults, series: dict[str, Series]) -> Section | None:
    """Return the section on compute multipliers, with a chart of all horizons."""
    known = [(effect, effect.multiplier) for effect in results.effects if effect.multiplier]
    if not known:
        return None
    shown = [series[effect.variant] for effect, _ in known]
    return Section("Compute", [_table(results, known), Key(shown), _chart(results, series, known)])


def _table(results: StudyResults, known: Sequence[tuple[Effect, Multiplier]]) -> Table:
    baseline = results.variants[0].name
    note = (
        "The compute with which the lower loss reached the higher final loss, as a share of what that took, read "
        "between the ends of runs of several lengths and never beyond them."
    )
    head = (
        "Variant",
        "Lower loss",
        "Reached the final loss of",
        "With this share of compute",
        "95 %",
    )
    rows = [
        Row(
            (effect.variant, *by_loss(effect, baseline), *compute_words(effect, found)),
            "beyond the horizons that were trained" if found.is_bound else "",
        )
        for effect, found in known
    ]
    return Table(note, head, rows)


def _chart(
    results: StudyResults, series: dict[str, Series], known: Sequence[tuple[Effect, Multiplier]]
) -> Chart:
    short = short_names([effect.variant for effect, _ in known])
    traces = []
    for effect, found in known:
        at = found.horizons
        traces.append(
            trace(
                series[effect.variant],
                short[effect.variant],
                x=[h.tokens for h in at],
                y=[h.mean for h in at],
                error_y=error_bars(
                    [h.high - h.mean for h in at],
                    [h.mean - h.low for h in at],
                    series[effect.variant],
                ),
                customdata=[
                    f"{fmt.signed(h.low)} to {fmt.signed(h.high)}, {h.pairs} pairs" for h in at
                ],
                hovertemplate="%{y:+.4f} (%{customdata})",
            )
        )
    ticks = sorted({h.tokens for _, found in known for h in found.horizons})
    return Chart(
        name="horizons",
        title=f"Difference from {shortened(results.variants[0].name)} by the length of the run",
        summary=" ".join(_summary(effect, found) for effect, found in known),
        traces=traces,
        layout={
            "hovermode": "x unified",
            "shapes": [ZERO],
            "xaxis": {
                "type": "log",
                "title": {"text": "tokens of a run"},
                "tickvals": ticks,
                "ticktext": [fmt.count(tokens) for tokens in ticks],
            },
        },
        unit=f"held-out {results.unit} at the end of runs, below 0 is better",
        note="Each point is of runs that ended there, their learning rate decayed: pairs at the rate that was found "
        "for the whole length. Lines: 95 % intervals. A difference that still moves at the end may come out otherwise "
        "after longer training.",
        full_width=True,
        saved=columns_of(
            [{"variant": e.variant, **vars(h)} for e, found in known for h in found.horizons]
        ),
    )


def _summary(effect: Effect, found: Multiplier) -> str:
    points = (f"{fmt.signed(h.mean)} at {fmt.count(h.tokens)} tokens" for h in found.horizons)
    return f"{effect.variant}: {', '.join(points)}."
