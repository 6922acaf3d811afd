"""Sources of the choices in compared models, as works and as BibTeX."""

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from archwright import presets
from archwright.lab.report.latex import escaped
from archwright.reporting.choices import automatic_paths
from archwright.spec.choice import Spec
from archwright.spec.docstrings import field_docstrings
from archwright.spec.installed import preset_files
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.version import version

WORK = re.compile(
    r"(?<![\w.])(?P<who>(?:\d+\.)?[A-Z][\w.'’-]*(?: Inc\.| [A-Z][\w-]+)*"
    r"(?:, [A-Z]\w+ and [A-Z]\w+)?(?: et al\.| and [A-Z][\w-]+)?), "
    r"(?P<year>(?:19|20)\d\d)(?P<name>, (?!sections?\b|tables?\b|figures?\b|eqs?\b|append|algorithm)[^;:,()]+)?"
)
"""A work in a source: "Press et al., 2021, ALiBi, section 3"."""


@dataclass(frozen=True)
class Work:
    """A work as a source names it."""

    who: str
    year: str
    name: str = ""
    """Its title or short name; empty if the source has none."""

    @property
    def key(self) -> str:
        """Citation key, such as `press2021alibi` or `zhangsennrich2019`."""
        who = re.sub(r" et al\.| and ", "", self.who)
        text = f"{who}{self.year}{' '.join(self.name.split()[:3])}".lower()
        return re.sub(r"[^a-z0-9]", "", unicodedata.normalize("NFKD", text))

    def bibtex(self, cited_for: Iterable[str]) -> str:
        """Return the BibTeX entry, without fields unknown to the source."""
        who = self.who.replace(" et al.", " and others").replace(", ", " and ")
        # An organisation has no first name.
        who = who if " and " in who or " " not in who else f"{{{who}}}"
        source = f"{self.who}, {self.year}" + f", {self.name}" * bool(self.name)
        title, *arxiv = _titles().get(source, [self.name])
        more = f"  title = {{{{{escaped(title)}}}}},\n" * bool(title)
        more += "".join(f"  note = {{arXiv:{number}}},\n" for number in arxiv)
        # BibTeX skips what stands between entries, up to the next @.
        why = "".join(f"% {words.replace('@', ' at ')}\n" for words in cited_for)
        author = f"  author = {{{escaped(who, braces=True)}}},\n"
        return f"{why}@misc{{{self.key},\n{author}{more}  year = {{{self.year}}},\n}}\n"


def works_in(text: str | None) -> list[Work]:
    """Return the works that a text cites, without repetition.

    A missing name of a work is taken from other sources.
    """
    known = _names()
    works = (
        w if w.name else Work(w.who, w.year, known.get((w.who, w.year), "")) for w in _read(text)
    )
    return list(dict.fromkeys(works))


def _read(text: str | None) -> Iterator[Work]:
    for m in WORK.finditer(" ".join((text or "").split())):
        yield Work(m["who"], m["year"], (m["name"] or "")[2:].strip().rstrip("."))


def cited_in() -> list[Path]:
    """Return the files with sources of presets and choices."""
    rooms = [preset_files(room).values() for room in ("models", "runs", "studies")]
    return [*chain(*rooms), presets.FOLDER / "listings" / "choices.json"]


@cache
def _names() -> dict[tuple[str, str], str]:
    """Return the unambiguous names of works by authors and year."""
    texts = (re.sub(r'\\*"', ";", file.read_text(encoding="utf-8")) for file in cited_in())
    found = {work for text in texts for work in _read(text) if work.name}
    several = Counter((work.who, work.year) for work in found)
    return {(w.who, w.year): w.name for w in found if several[w.who, w.year] == 1}


def choices_of(run: RunSpec) -> dict[str, list[Work]]:
    """Return the sources of a run's choices, by choice such as `norm.kind = rms`.

    Options count if they are set.
    """
    found: dict[str, list[Work]] = {}
    automatic = automatic_paths(run.model)
    for words, text in _sources(run, ""):
        if words.split()[0] in automatic:
            continue
        known = found.setdefault(words, [])
        known += [work for work in works_in(text) if work not in known]
    return {words: works for words, works in found.items() if works}


def _sources(spec: Spec, at: str) -> Iterator[tuple[str, str | None]]:
    """Yield each choice and each non-default option with its source."""
    stated: Mapping[str, str] = getattr(spec, "sources", {})
    kind = getattr(spec, "kind", None)
    if kind is not None:
        yield f"{at[:-1]} {kind}", type(spec).__doc__
    docstrings = field_docstrings(type(spec))
    layers = spec.layers_by_kind.items() if isinstance(spec, ModelSpec) else ()
    for name, value in (*spec, *layers):
        path = f"{at}{name}".removeprefix("model.")
        field = type(spec).model_fields.get(name)
        if isinstance(value, Spec) and name != "default":
            yield from _sources(value, f"{path}." if path != "model" else "")
        elif field and value != field.default and name not in ("source", "sources", "kind"):
            yield f"{path} {value}", docstrings.get(name)
    if isinstance(spec, ModelSpec):
        yield f"model {spec.name}", spec.source
    for path, text in stated.items():
        stands: Any = spec
        for name in path.split("."):
            stands = getattr(stands, name, None)
        yield f"{path} {getattr(stands, 'kind', stands)}", text


@cache
def _titles() -> dict[str, list[str]]:
    """Return titles of works, some with their arXiv number."""
    with (presets.FOLDER / "works.toml").open("rb") as file:
        return tomllib.load(file)


def bibliography(cited: Mapping[Work, Collection[str]]) -> str:
    """Return references.bib: archwright, and all works with their choices."""
    head = (
        "% Made by archwright from the sources of its choices, which name first authors alone, and some works by a\n"
        "% short title: complete the entries before you publish.\n"
    )
    own = (
        "@misc{archwright,\n  author = {{The archwright authors}},\n  title = {archwright},\n"
        f"  note = {{Version {escaped(version())}}},\n}}\n"
    )
    works = sorted(cited, key=lambda work: work.key)
    return "\n".join([head, own, *(work.bibtex(cited[work]) for work in works)])
