"""Interactions of two changes: the effect of one, with and without the other."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean

from archwright.lab.procedure.constants import ALPHA
from archwright.lab.procedure.looks import Looks
from archwright.lab.procedure.statistics import SharedError, t_interval, text_error
from archwright.lab.results import Interaction, Replicate, Unit
from archwright.spec.study_spec import StudySpec


def interactions(
    study: StudySpec,
    replicates: Sequence[Replicate],
    baseline: str,
    unfit: Collection[str] = (),
    unit: Unit = "nats per token",
    placing: Mapping[str, float] | None = None,
    looks: Looks | None = None,
) -> list[Interaction]:
    """Return the interaction of each two variants, if a third has the changes of both.

    (both - first) - (second - baseline), over the common seeds; below 0 they help each other. Student's intervals,
    valid at all `looks` together, not corrected for several interactions. Source: Box, Hunter and Hunter, 2005,
    Statistics for experimenters, section 5.

    Args:
        unfit: Variants without interactions: the learning rate is at an end of its grid, or they learnt nothing.
    """
    by_seed: dict[str, dict[int, Replicate]] = {}
    for replicate in replicates:
        by_seed.setdefault(replicate.variant, {})[replicate.seed] = replicate
    results = []
    for first, second, both in _squares(study):
        names = (baseline, first, second, both)
        if not by_seed.keys() >= {*names} or {*unfit} & {*names}:
            continue
        seeds = sorted(set.intersection(*(set(by_seed[name]) for name in names)))
        if len(seeds) < 2:
            continue
        base, one, other, together = ([by_seed[name][seed] for seed in seeds] for name in names)
        differences = [
            (d.loss - b.loss) - (c.loss - a.loss)
            for a, b, c, d in zip(base, one, other, together, strict=True)
        ]
        # Both differences share the documents: at most the sum of both errors.
        documents = sum(
            text_error([(v.best.halves, w.best.halves) for v, w in zip(vs, ws, strict=True)])
            for vs, ws in ((together, one), (other, base))
        )
        placed = math.hypot(*((placing or {}).get(name, 0.0) for name in names))
        level = 1 - looks.level(ALPHA, len(seeds)) if looks else 1 - ALPHA
        interval = t_interval(differences, level, SharedError(documents, placed))
        interval = replace(interval, level=1 - ALPHA)
        interaction = Interaction(
            *names[1:], fmean(differences), interval, (*seeds,), (*differences,), sentence=""
        )
        results.append(replace(interaction, sentence=_sentence(interaction, unit)))
    return results


def _squares(study: StudySpec) -> list[tuple[str, str, str]]:
    """Return the variants (first, second, both) of each 2 x 2."""
    words = {name: {*keys} for name, keys in study.variants.items()}
    return [
        (first, second, both)
        for first, second in combinations(words, 2)
        for both in words
        if not words[first] & words[second] and words[both] == words[first] | words[second]
    ]


def _sentence(interaction: Interaction, unit: Unit) -> str:
    first, second = interaction.first, interaction.second
    mean, interval = interaction.mean, interaction.interval
    if not interaction.is_known:
        return f"The interaction of {first} and {second} is inconclusive."
    near, far = sorted((abs(interval.low), abs(interval.high)))
    how, where = ("help each other", "lower") if mean < 0 else ("get in each other's way", "higher")
    return (
        f"{first} and {second} {how}: with both, the loss is {abs(mean):.3g} {unit} {where} (95 % interval "
        f"{near:.3g} to {far:.3g}) than what each does alone adds up to."
    )
