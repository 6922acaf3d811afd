"""Paper kit of a study in LaTeX: table of effects, charts, methods, references."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

from archwright import format as fmt
from archwright.files import atomic_write, check_replaceable
from archwright.lab.procedure.constants import ALPHA
from archwright.lab.procedure.looks import Looks, alpha_spent, decide
from archwright.lab.procedure.verdict import (
    claim_words,
    compute_words,
    is_unlearnt,
    spikes_in_words,
)
from archwright.lab.report.latex import escaped
from archwright.lab.report.paper_charts import CAPTIONS, draw_charts
from archwright.lab.report.references import Work, bibliography, choices_of, works_in
from archwright.lab.report.saved import open_study, runs_of_variants
from archwright.lab.report.sections import MATCHED
from archwright.lab.results import ControlledVariable, Effect, StudyResults, Variant
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec

SPENDING, HOLM = works_in(alpha_spent.__doc__), works_in(decide.__doc__)
STATISTICS = (*SPENDING, *HOLM)

MAIN = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\IfFileExists{lmodern.sty}{\usepackage[T1]{fontenc}\usepackage{lmodern}}{}
\usepackage[margin=2.5cm]{geometry}
\usepackage{array,booktabs,graphicx}
\usepackage[round]{natbib}
\title{%s}
\author{}
\begin{document}
\maketitle
\section{Methods}
\input{methods}
\section{Results}
Table~\ref{tab:effects} has the differences from the baseline, %s.
\input{effects}
%s
\bibliographystyle{plainnat}
\bibliography{references}
\end{document}
"""

TABLE = r"""\begin{table}[tbp]
\centering\small
\caption{%s}
\label{tab:%s}
\begin{tabular}{@{}%s@{}}
\toprule
%s
\bottomrule
\end{tabular}
\end{table}
"""

ABOUT = {
    "effects": "draws them with single pairs",
    "horizons": "those of shorter runs",
    "loss": "the losses on the way",
    "lr": "the losses by learning rate",
}
"""Content of each chart, for the text."""

FIGURE = r"""\begin{figure}[tbp]
\centering
\includegraphics{%s}
\caption{%s}
\label{fig:%s}
\end{figure}
"""


def write_paper(study: str | Path, folder: str | Path) -> list[Path]:
    """Write the paper kit of a study's folder; return its files (compile main.tex).

    Raises:
        UserError: No results, no compared variants, or no matplotlib.
    """
    results = open_study(study)
    if not results.effects:
        what = "a study of widths" if results.study.widths else "no effect yet"
        raise UserError(f"{study}: found {what}; expected variants that were compared in pairs")
    return write_kit(results, runs_of_variants(study), folder)


def write_kit(results: StudyResults, runs: Mapping[str, RunSpec], folder: str | Path) -> list[Path]:
    """Write the kit of results and of the run of each variant.

    Raises:
        UserError: a file that is another's or was changed, or no matplotlib.
    """
    folder, files = Path(folder), draw_charts(results)
    names = dict.fromkeys(Path(name).stem for name in files)
    figures = [FIGURE % (name, escaped(CAPTIONS[name]), name) for name in names]
    shown = [rf"figure~\ref{{fig:{name}}} {ABOUT[name]}" for name in names]
    cited = {name: choices_of(run) for name, run in runs.items()}
    text = methods(results, cited)
    title = escaped(results.study.question or f"Study {results.study.name}")
    texts = {
        "main.tex": MAIN % (title, ", ".join(shown), "\n".join(figures)),
        "effects.tex": effects_table(results),
        "methods.tex": text,
        "references.bib": bibliography(_reasons(cited, text)),
    }
    files = {name: words.encode() for name, words in texts.items()} | files
    for name in files:
        check_replaceable(folder / name, _is_sealed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        atomic_write(folder / name, content + _seal(content, name))
    return [folder / name for name in files]


def _seal(content: bytes, name: str) -> bytes:
    """Return the last line of a file: a hash that detects edits."""
    line = f"% archwright {hashlib.sha256(content).hexdigest()}"
    return (f"<!-- {line[2:]} -->\n" if name.endswith(".svg") else f"{line}\n").encode()


def _is_sealed(path: Path) -> bool:
    before, _, last = path.read_bytes().removesuffix(b"\n").rpartition(b"\n")
    return last + b"\n" == _seal(before + b"\n", path.name)


def effects_table(results: StudyResults) -> str:
    """Return effects.tex, which needs the packages booktabs and array."""
    level = "95 % interval"
    head = ["Variant", "Outcome", f"Difference ({level})", "%", f"Compute ({level})", "Seeds"]
    rows = [_cells(effect) for effect in results.effects]
    size = results.variants[0].non_embedding
    caption = (
        f"Variants against {results.variants[0].name} ({fmt.count(size)} parameters outside embedding and head, "
        f"{fmt.count(results.tokens_per_run)} tokens a run). Difference: held-out loss of the variant minus that of "
        f"the baseline at equal tokens, in {results.unit}, and in % of the baseline's loss; below 0 is better. "
        "Intervals are of the mean; the difference is shrunken towards 0 where an early look decided. Compute: the "
        "share of training FLOPs with which the lower loss reached the higher final loss. Seeds: compared pairs. A "
        "dash: not measured, or inconclusive, which has no number to be read."
    )
    columns = r">{\raggedright\arraybackslash}p{0.2\linewidth}lrrrr"
    return _table("effects", caption, columns, rows, head)


def _table(
    label: str,
    caption: str,
    columns: str,
    rows: Sequence[Sequence[str]],
    head: Sequence[str] = (),
) -> str:
    lines = [" & ".join(map(escaped, cells)) + r" \\" for cells in rows]
    lines = [" & ".join(map(escaped, head)) + r" \\ \midrule"] * bool(head) + lines
    return TABLE % (escaped(caption), label, columns, "\n".join(lines))


def _cells(effect: Effect) -> list[str]:
    """Return the cells of a variant; differences without a finite interval have none."""
    low, high, found = effect.interval.low, effect.interval.high, effect.multiplier
    difference = share = compute = "–"
    if effect.has_numbers and not is_unlearnt(effect) and math.isfinite(effect.estimate):
        difference = fmt.signed(effect.estimate)
        if math.isfinite(low) and math.isfinite(high):
            difference += f" ({fmt.signed(low)} to {fmt.signed(high)})"
        if math.isfinite(effect.share):
            share = fmt.signed(100 * effect.share, 2)
        if found:
            value, interval = compute_words(effect, found)
            compute = f"{value} ({interval})" if interval else value
    return [effect.variant, effect.outcome, difference, share, compute, str(len(effect.seeds))]


def methods(results: StudyResults, cited: Mapping[str, Mapping[str, Sequence[Work]]]) -> str:
    """Return methods.tex, from the study's settings and runs.

    Args:
        cited: Choices of each variant with a source, the baseline first.
    """
    baseline, *others = results.variants
    first = cited.get(baseline.name, {})
    with_source = "; ".join(_choice(words, works) for words, works in first.items())
    variants = [
        rf"\item {_size(variant)}: {_changes(variant, first, cited.get(variant.name, {}))}"
        for variant in others
    ]
    several = "variants were" if len(others) > 1 else "variant was"
    chosen = (
        f" The choices of the baseline that have a source are {with_source}." if with_source else ""
    )
    parts = [
        rf"{len(others)} {several} compared with a baseline, {_size(baseline)}, with archwright~\citep{{archwright}}. "
        f"{_matching(results)}{chosen} The variants are:",
        r"\begin{itemize}",
        *variants,
        r"\end{itemize}",
        f"{_training(results)} {_tuning(results)} {_judging(results)}",
        "",
        " ".join(
            [
                "Outcomes:",
                *(_outcome(effect, baseline.name) for effect in results.effects),
                *_limits(results),
            ]
        ),
        "",
        "The study is repeated by",
        r"\begin{quote}\small\raggedright\ttfamily",
        escaped(results.command),
        r"\end{quote}",
        _settings(results.held),
    ]
    return "\n".join(parts)


def _size(variant: Variant) -> str:
    layers = f"{variant.num_layers} layer{'s' * (variant.num_layers != 1)} of width {variant.dim}"
    return escaped(
        f"{variant.name} ({layers}, {variant.non_embedding:,} parameters outside embedding and head, "
        f"{variant.parameters:,} in all)"
    )


def _changes(
    variant: Variant,
    first: Mapping[str, Sequence[Work]],
    own: Mapping[str, Sequence[Work]],
) -> str:
    """Return a variant's changes from the baseline, with the sources of its additional choices."""
    changes = [line.replace(" -> ", " → ") for line in variant.changes]
    words = escaped("; ".join(changes) or "no difference")
    sources = "; ".join(_choice(w, works) for w, works in own.items() if first.get(w) != works)
    return f"{words}. Sources: {sources}." if sources else f"{words}."


def _choice(words: str, works: Iterable[Work]) -> str:
    return escaped(words) + _cite(works)


def _cite(works: Iterable[Work]) -> str:
    return rf"~\citep{{{','.join(work.key for work in works)}}}"


def _matching(results: StudyResults) -> str:
    """Return the matched quantity and the largest mismatch."""
    match, (baseline, *others) = results.study.match, results.variants
    if match == "none":
        return "Sizes of the variants were not matched."
    name = "flops_per_token" if match == "flops" else match
    off = max(abs(getattr(other, name) / getattr(baseline, name) - 1) for other in others)
    return escaped(
        f"They were matched in {MATCHED[match]}, and differ in these by {100 * off:.2g} % at most."
    )


def _training(results: StudyResults) -> str:
    each = results.tokens_per_run / results.variants[0].non_embedding
    text = (
        f"Each run was trained on {results.tokens_per_run:,} tokens in {results.steps:,} steps, "
        f"{fmt.significant(each)} tokens for each parameter of the baseline outside embedding and head, on "
        f"{results.device}."
    )
    time = (
        f" All runs took {fmt.duration(results.seconds)}." if math.isfinite(results.seconds) else ""
    )
    return escaped(text + time) + r" Table~\ref{tab:settings} has the settings."


def _tuning(results: StudyResults) -> str:
    study = results.study
    if not study.tune_lr:
        return "Learning rates were given, not tuned."
    seeds = len(study.tuning_seed_numbers)
    rates = [
        f"{variant.name} {fmt.short(geometric_mean(found))}"
        for variant in results.variants
        if (found := [r.lr for r in results.replicates if r.variant == variant.name])
    ]
    return escaped(
        f"The peak learning rate of each variant was tuned on {seeds} seed{'s' * (seeds != 1)} at most that are not "
        f"compared, over {study.lr_grid_size} rates or more, a factor of {study.lr_ratio:g} apart or less; runs were "
        f"compared at the rate that was found ({', '.join(rates)})."
    )


def _judging(results: StudyResults) -> str:
    """Return the looks and the tests of the study as text."""
    study, several, error = results.study, len(results.effects) > 1, rf"{100 * ALPHA:g}\,\%"
    numbers = Looks(len(study.seed_numbers), study.seeds, study.early_stopping, study.ends).numbers
    looks = f"The study was judged once, at its end, with an error rate of {error}"
    if len(numbers) > 1:
        at = fmt.listed([str(number) for number in numbers])
        looks = (
            f"The study was to be judged after {at} pairs, and variants with a clear result were trained no further; "
            f"the error rate of all looks together is {error}{_cite(SPENDING)}"
        )
    correction = f", with Holm's correction for several variants{_cite(HOLM)}" if several else ""
    return (
        f"Runs of one seed are a pair. {looks}{correction}. Intervals are of 95\\,\\%, of the mean difference over "
        "pairs. A variant is called better or worse only if an interval of signed ranks leaves out 0, too. "
        "A difference is called equivalent if its 90\\,\\% interval lies within the margin that was fixed "
        f"beforehand, {escaped(results.study.margin)}; inconclusive is what is neither better, worse nor equivalent."
    )


def _outcome(effect: Effect, baseline: str) -> str:
    why = f" because {fmt.listed([*effect.caveats])}" if effect.caveats else ""
    return escaped(f"{claim_words(effect, effect.variant, baseline)}{why}.")


def _limits(results: StudyResults) -> list[str]:
    open_still = [] if results.complete else ["The study is not complete, and outcomes may change."]
    spiked = (f"{words}." for words in spikes_in_words(results.spikes, results.spike_rates))
    return [escaped(text) for text in (*open_still, *spiked, results.scope, *results.notes)]


def _settings(held: Sequence[ControlledVariable]) -> str:
    """Return the table of settings, shared ones and those that differ."""
    rows = []
    for setting in held:
        each = [f"{name}: {value}" for name, value in setting.by_variant.items()]
        rows.append([setting.what, "; ".join([setting.value, *each] if setting.value else each)])
    left = r">{\raggedright\arraybackslash}p{%s\linewidth}"
    caption = "Settings of all runs; by variant where they are not equal."
    return _table("settings", caption, left % 0.3 + left % 0.64, rows)


def _reasons(cited: Mapping[str, Mapping[str, Sequence[Work]]], text: str) -> dict[Work, list[str]]:
    """Return the cited works of a text, each with its choices."""
    keys = {key for keys in re.findall(r"\\citep\{([^}]*)\}", text) for key in keys.split(",")}
    found: dict[Work, list[str]] = {work: ["statistics"] for work in STATISTICS}
    for choices in cited.values():
        for words, works in choices.items():
            for work in works:
                reasons = found.setdefault(work, [])
                reasons += [words] * (words not in reasons)
    return {work: reasons for work, reasons in found.items() if work.key in keys}
