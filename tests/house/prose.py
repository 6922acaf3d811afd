"""Prose: turns of phrase that are common here and rare in the documentation of PyTorch, NumPy and litgpt."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.house.sizes import BUDGETS
from tests.house.source import Count, Source

PATTERNS = {
    r"\bwhat (?:is|was|were|it|they|a|an|the|each|one|all|no|has|have|stands|comes|follows|belongs)\b": 0.08,
    r"\b(?:return|yield|say|tell|print|keep|know|show|give)s? (?:what|how|where|which|whether)\b": 0.10,
    r"\bwhere (?!to\b|:)": 1.03,
    r"\b(?:those|that) (?:of|that|which|in|with|for|to)\b": 0.18,
    r"\bof (?:which|whom|what|whose)\b": 0.06,
    r"\bwhose\b": 0.18,
    r"\bbesides?\b": 0.01,
    r"\bbehind\b": 0.02,
    r"\bstands?\b": 0.01,
    r"\bgo(?:es)? on\b|\bwent on\b": 0.00,
    r"\b(?:says?|said|tells?|told|asks?|asked|wants?|lets?|hears?|knows?|wishes)\b": 0.54,
    r"\b(?:alone|by itself|by themselves|of (?:its|their|one's) own)\b": 0.02,
    r"\b(?:anew|foreseen|begun|whatever|whoever|nobody|somebody|nothing of|naught)\b": 0.01,
    r"\bas (?:many|much|long|far) (?:as|of|again)?\b": 0.04,
    r"\bso (?:many|much|long|far)\b": 0.03,
    r"\b(?:in place of|instead of which|at all|once more|and so on)\b": 0.04,
    r"\b(?:is|are|was|were|be) (?:asked|told|let|taken|given|left|made|said|kept|seen|met|had|looked)\b": 0.58,
    r"\b(?:made of|made from|comes? of|came of|comes? to|becomes? of)\b": 0.01,
    r"\b(?:the) (?:other|former|latter) (?:one|ones|side)\b": 0.00,
    r", too\b|\btoo[,.;]": 0.01,
    r"\b(?:a|one) line each\b|\bone line\b": 0.00,
}
"""Pattern -> matches per 1,000 words in the documentation of those libraries."""
PLAIN = frozenset(("cli", "reporting", "hf", "text", "data", "runs", "catalogue"))
"""Rooms in which no variable has one of `VAGUE` as its name."""
VAGUE = frozenset(("found", "known", "given", "own", "each", "whole", "kept"))
GENERATED = ("catalogue.md", "architectures.md")


def counts(package: Sequence[Source]) -> list[Count]:
    """Return the index of docstrings, of each room's next to its limit, and vague names."""
    limits = BUDGETS["prose"]
    return [
        Count("prose index of docstrings", f"{excess(docstrings(package)):.1f}", "at most 5"),
        *(
            Count(f"  prose of {room}", f"{index:.1f}", f"at most {limits.get(room, 5)}")
            for room, index in by_room(package).items()
        ),
        Count.of("vague names of variables", (p for s in package for p in vague_names(s)), "0"),
    ]


def excess(texts: Sequence[str]) -> float:
    """Return matches per 1,000 words beyond twice the reference, summed over patterns."""
    words = sum(len(re.findall(r"[A-Za-z][A-Za-z'-]*", text)) for text in texts) or 1
    total = 0.0
    for pattern, reference in PATTERNS.items():
        matches = sum(len(re.findall(pattern, text, re.IGNORECASE)) for text in texts)
        total += max(0.0, 1000 * matches / words - 2 * reference)
    return total


def by_room(package: Sequence[Source]) -> dict[str, float]:
    """Return the index of the docstrings of each room."""
    rooms = sorted({source.room for source in package})
    return {room: excess(docstrings(s for s in package if s.room == room)) for room in rooms}


def pages(root: Path) -> list[str]:
    """Return the prose of hand-written pages, without code."""
    paths = [p for p in root.glob("docs/**/*.md") if p.name not in GENERATED]
    paths += [root / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
    texts = [re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL) for path in paths]
    return [re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text) for text in texts]


def vague_names(source: Source) -> Iterator[str]:
    """Yield variables and arguments with a name that names nothing."""
    for node in ast.walk(source.tree):
        name = node.arg if isinstance(node, ast.arg) else ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name in VAGUE:
            yield source.at(node, name)


def docstrings(sources: Iterable[Source]) -> list[str]:
    """Return all docstrings of files."""
    return [text for source in sources for _, text in source.docstrings]
