"""Each thing that is counted is planted in a small package, beside its like that is none, and is counted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.house import choices, comments, imports, llama, prose, sizes, suite
from tests.house.source import Count, Source, read
from tests.tiny import ROOT

SPEC = {
    "spec/choice.py": "class Choice: ...",
    "spec/norms.py": """
        from archwright.spec.choice import Choice
        class Norm(Choice):
            axis: ClassVar[str] = "norm"
        class Scaled(Norm):
            eps: float = 1e-5
        class RMSNorm(Scaled):
            kind: Literal["rms"] = "rms"
        class LayerNorm(Norm):
            kind: Literal["layer"] = "layer"
        """,
    "spec/model_spec.py": """
        from archwright.spec.norms import Norm, RMSNorm
        class ModelSpec:
            norm: Norm = RMSNorm()
        """,
    "parts/norms.py": """
        from archwright.spec import norms as spec
        class RMS:
            def __init__(self, choice: spec.RMSNorm) -> None: ...
        NORMS = {spec.RMSNorm: RMS}
        """,
    "hf/families.py": """
        from archwright.spec.norms import RMSNorm
        def convert(x): return isinstance(x, RMSNorm) or x.kind == "rms"
        """,
}
"""An axis with its homes, in which everything is allowed."""

Counts = Callable[[Sequence[Source]], list[Count]]


@pytest.fixture
def count(tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    """Counts in a package of the given files: what was counted -> the text of the places."""

    def counted(counts: Counts, files: dict[str, str]) -> dict[str, list[str]]:
        for name, text in files.items():
            path = tmp_path / "archwright" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text).lstrip(), encoding="utf-8")
        rows = counts(read(tmp_path))
        return {
            row.what: [place.removeprefix("archwright/") for place in row.places] for row in rows
        }

    return counted


def numbers(counts: list[Count]) -> dict[str, int | str]:
    return {row.what: row.number for row in counts}


@pytest.mark.slow
def test_the_package_asks_no_choice_for_its_class() -> None:
    """A choice says what it does; so one from outside the package is treated as those inside it are."""
    found = {row.what: row.places for row in choices.counts(read(ROOT))}
    for what in (
        "choices named there",
        "isinstance on a choice outside its homes",
        "comparisons with a kind's name outside its homes",
        "getattr and hasattr where parts are held",
    ):
        assert found[what] == (), what


def test_no_room_is_larger_than_its_budget() -> None:
    """What to do: delete something, or raise a number in budgets.toml with the reason."""
    lines = sizes.lines_of_rooms(read(ROOT))
    budgets = sizes.BUDGETS["rooms"]
    assert {room: n for room, n in lines.items() if n > budgets.get(room, 0)} == {}
    assert lines.total() <= sizes.BUDGETS["package"]
    assert suite.num_lines(read(ROOT, "tests")) <= sizes.BUDGETS["tests"]
    for document, budget in sizes.BUDGETS["documents"].items():
        assert len((ROOT / document).read_text("utf-8").splitlines()) <= budget, document


def test_the_prose_of_no_room_gets_worse() -> None:
    """What to do: use the field's words (CONTRIBUTING.md). Lower a limit in budgets.toml after an improvement."""
    limits = sizes.BUDGETS["prose"]
    indices = {**prose.by_room(read(ROOT)), "pages": prose.excess(prose.pages(ROOT))}
    assert {room: i for room, i in indices.items() if i > limits.get(room, 5)} == {}


def test_names_of_variables_are_nouns() -> None:
    plain = [source for source in read(ROOT) if source.room in prose.PLAIN]
    assert [place for source in plain for place in prose.vague_names(source)] == []


def test_turns_of_phrase(count: Callable[..., dict[str, list[str]]]) -> None:
    assert prose.excess(["Gather gradients across ranks."]) == 0
    # Two matches in seven words; "whose" occurs in the reference, too.
    assert prose.excess(["Say what a part whose name stands."]) > 2000 / 7
    text = "found = 1\ndef f(given, seed):\n    for each in seed: kept.own = each, found"
    rows = count(prose.counts, {"cli/a.py": text})
    assert rows["vague names of variables"] == [
        "cli/a.py:1: found",
        "cli/a.py:2: given",
        "cli/a.py:3: each",
    ]


def test_a_choice_at_home_is_no_fault(count: Callable[..., dict[str, list[str]]]) -> None:
    rows = count(choices.counts, SPEC)
    assert not any(places for what, places in rows.items() if "outside its homes" in what)


@pytest.mark.parametrize(
    ("text", "row", "place"),
    [
        (
            "from archwright.spec.norms import RMSNorm\ndef f(x: RMSNorm) -> None: ...",
            "choices named there",
            "lab/a.py:2: RMSNorm",
        ),
        (
            "from archwright.spec import norms\ndef f(x): return isinstance(x, norms.LayerNorm)",
            "isinstance on a choice outside its homes",
            "lab/a.py:2: isinstance(x, norms.LayerNorm)",
        ),
        (
            "def f(x):\n    from archwright.spec.norms import RMSNorm as R, Scaled\n"
            "    return isinstance(x, Scaled) or isinstance(x, R)",
            "isinstance on a choice outside its homes",
            "lab/a.py:3: isinstance(x, R)",
        ),
        (
            "from archwright.parts.norms import NORMS, RMS\ndef f(x): return isinstance(x, RMS)\n"
            "def g(x): return isinstance(x, tuple(NORMS.values()))",
            "isinstance on an axis's part outside its homes",
            "lab/a.py:2: isinstance(x, RMS)",
        ),
        (
            'def f(x): return x["kind"] in ("rms", "none")\ndef g(x): return x.sort == "rms"',
            "comparisons with a kind's name outside its homes",
            "lab/a.py:1: x['kind'] in ('rms', 'none')",
        ),
        (
            'def f(x):\n    assert x.size != "auto"\n    assert x.size != "none"',
            'asserts that a value is not "auto"',
            "lab/a.py:2: assert x.size != 'auto'",
        ),
        ("from typing import Any\nx: list[Any] = []", "Any", "lab/a.py:2"),
        (
            "from archwright.model.model import Decoder\ndef f(x: Decoder) -> None: ...",
            "files outside model/ that name Decoder",
            "lab/a.py:1",
        ),
    ],
)
def test_a_choice_that_is_asked_for(
    count: Callable[..., dict[str, list[str]]], text: str, row: str, place: str
) -> None:
    assert count(choices.counts, SPEC | {"lab/a.py": text})[row] == [place]


def test_attributes_that_are_asked_for_where_parts_are_held(
    count: Callable[..., dict[str, list[str]]],
) -> None:
    text = (
        "import torch\n"
        "def f(x): return getattr(x, 'kernel', None), getattr(torch, 'compile')\n"
        "def g(x, name): return getattr(x, '__name__', ''), getattr(x, name), hasattr(x, name)"
    )
    rows = count(choices.counts, {"model/a.py": text, "cli/a.py": text})
    assert rows["getattr and hasattr where parts are held"] == [
        "model/a.py:2: getattr(x, 'kernel', None)",
        "model/a.py:3: hasattr(x, name)",
    ]


def test_comments(count: Callable[..., dict[str, list[str]]]) -> None:
    text = """
        # Why it is so.
        def f(x):
            x = x.view(1, 2)  # [batch, 2]
            # Heads are told apart: [batch, heads, dim].
            x = x.reshape(
                1, 2
            )
            x = x.flatten()  # noqa
            return x.transpose(0, 1)  # type: ignore[no-any-return]
    """
    rows = count(comments.counts, {"model/a.py": text})
    assert len(rows["lines with a comment"]) == 3
    assert len(rows["of these, lines of their own"]) == 2
    assert len(rows["shape comments in model/ and parts/"]) == 2
    assert rows["reshapes there without one"] == [
        "model/a.py:8: flatten",
        "model/a.py:9: transpose",
    ]
    source = Source(Path("archwright/model/a.py"), dedent(text).lstrip())
    assert numbers(comments.counts([source]))["lines of code, without docstrings and comments"] == 7


def test_sizes(count: Callable[..., dict[str, list[str]]]) -> None:
    long = "def long():\n" + "    pass\n" * 50
    text = long + "class Decoder:\n    def hidden(self): return _once(_twice(_twice(1)))\n"
    text += "def _once(x): ...\ndef _twice(x): ...\ndef _given(x): ...\nkept = [_given]\n"
    rows = count(sizes.counts, {"model/decoder.py": text, "lab/a.py": "x = 1\n" * 401})
    assert rows["private functions that are called once"] == ["model/decoder.py:54: _once"]
    assert rows["functions over 50 lines"] == ["model/decoder.py:1: long"]
    assert rows["files over 400 lines"] == ["lab/a.py:401"]
    found = numbers(sizes.counts([Source(Path("archwright/model/decoder.py"), text)]))
    assert found["lines of Python"] == found["  model"] == len(text.splitlines())
    assert found["lines of Decoder.hidden"] == 1
    assert (found["functions"], found["private functions"]) == (5, 3)


def test_modules(count: Callable[..., dict[str, list[str]]]) -> None:
    files = {f"{room}/terms.py": "IGNORE = -100" for room in ("cli", "lab", "hf")}
    files |= {f"{room}/pages.py": "" for room in ("cli", "lab")}
    files["model/a.py"] = """
        import os
        from archwright.cli import terms
        terms.IGNORE = 0
        os.environ = {}
        os.replace("a", "b")
        "text".replace("a", "b")
        parse_budget("3m")
    """
    rows = count(imports.counts, files)
    assert rows["names of modules that are in 3 rooms or more"] == ["terms: cli, hf, lab"]
    assert rows["names of modules set from outside"] == ["model/a.py:3: terms.IGNORE"]
    assert rows["places that replace a file or wait for the disk"] == ["model/a.py:5: os.replace"]
    assert rows["places that parse a budget"] == ["model/a.py:7: parse_budget"]
    assert len(rows["definitions of IGNORE"]) == 3


def test_what_tests_reach_into() -> None:
    package = Source(
        Path("archwright/lab/a.py"), "def _f(): ...\nclass A:\n  def g(self): self._b = 1"
    )
    text = dedent("""
        from archwright.lab import a
        from archwright.lab.a import _f, A
        def test(monkeypatch):
            a._f(), A()._b, A()._other
            monkeypatch.setattr(a, "_f", None)
            monkeypatch.setattr("archwright.lab.a.A", None)
            monkeypatch.setenv("_f", "1")
    """)
    rows = {
        row.what: row for row in suite.counts([Source(Path("tests/test_a.py"), text)], [package])
    }
    places = [
        place.split(": ")[-1] for place in rows["private names of the package in tests"].places
    ]
    assert sorted(places) == ["A()._b", "_f", "_f", "a._f"]
    assert rows["patches in tests"].number == 2


def test_every_reshape_says_what_shape_it_makes() -> None:
    inside = [source for source in read(ROOT) if source.room in comments.TENSORS]
    rows = {row.what: row.places for row in comments.counts(inside)}
    assert rows["reshapes there without one"] == ()


def test_no_module_imports_itself_through_others() -> None:
    rows = {row.what: row.places for row in imports.counts(read(ROOT))}
    assert rows["circles of imports"] == ()


def test_the_way_to_a_llamas_attention() -> None:
    files = llama.files()
    assert files[0] == "archwright/model/model.py"
    assert "archwright/parts/linear.py" in files
    assert "archwright/parts/feedforward.py" not in files
    assert len(files) == len(set(files))
