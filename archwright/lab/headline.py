"""A study's verdict in a headline: what a reader remembers, without numbers."""

from collections.abc import Iterator, Sequence

from archwright.format import listed
from archwright.lab.results import Effect, Outcome
from archwright.lab.verdict import GROUPS, claim_words


def headline(effects: Sequence[Effect], baseline: str, words: int) -> str:
    """Return the outcomes in at most so many `words`: with all names where these fit, else counted."""
    found = list(_headlines(effects, baseline))
    return next((text for text in found if len(text.split()) <= words), found[-1])


def _headlines(effects: Sequence[Effect], baseline: str) -> Iterator[str]:
    """Yield headlines, the shortest and least precise last."""
    if not effects:
        yield "Nothing was compared yet"
        return
    if len(effects) == 1:
        yield claim_words(effects[0].outcome, effects[0].variant, baseline)
        brief = claim_words(effects[0].outcome, "the variant", "the baseline")
        yield brief[:1].upper() + brief[1:]
        return
    names: dict[Outcome, list[str]] = {}
    for outcome in GROUPS:
        if members := [effect.variant for effect in effects if effect.outcome == outcome]:
            names[outcome] = members
    groups = [f"{listed(n)} {GROUPS[o][len(n) > 1]}" for o, n in names.items()]
    yield f"Against {baseline}, {', '.join(groups)}"
    counts = {o: f"{len(n)} {o.replace('below', 'within')}" for o, n in names.items()}
    yield f"{len(effects)} variants: {', '.join(counts.values())}"
    superior = [o for o in names if o in ("better", "worse")] or [*names][:1]
    first, *others = [counts[o] for o in superior]
    verb = "is" if first.startswith("1 ") else "are"
    few = [first.replace(" ", f" {verb} ", 1), *others]
    yield f"Of {len(effects)} variants, {listed(few)}"
