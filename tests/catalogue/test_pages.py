"""The page of choices is what its generator writes, has every choice, and every command on it builds."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from archwright.catalogue.axes import sections
from archwright.catalogue.usage import named
from archwright.model import build
from archwright.spec.choice import Choice
from archwright.spec.read import load_run
from docs._make import catalogue
from docs._make.catalogue import markdown

PAGE = catalogue.FILE.read_text("utf-8")
COMMANDS = re.findall(r"^archwright train .*$", PAGE, re.MULTILINE)
SOURCE = re.compile(r"\(([^()]*\b(19|20)\d\d\b|[^()]*[A-Z][\w-]+|gpt-oss)[^()]*\)")
PLAIN = {("schedule", "constant")}
"""Kinds that nobody had to invent."""


@pytest.mark.slow
def test_the_page_is_the_one_that_the_choices_make() -> None:
    assert markdown() == PAGE, "run `make docs`"


def test_every_kind_has_a_heading_and_every_link_leads_to_one() -> None:
    headings = {_anchor(line) for line in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)}
    for axis in Choice.axes():
        for kind, choice in axis.kinds.items():
            assert f"{axis.axis}-{kind}" in headings
            assert " ".join((choice.__doc__ or "").split()) in PAGE
    assert set(re.findall(r"\]\(#(.*?)\)", PAGE)) <= headings


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_choice_says_what_it_is_and_where_it_is_from() -> None:
    for section in sections():
        assert section.meaning.endswith(".")
        for kind in section.kinds:
            assert kind.meaning.endswith(".")
            if kind.name != "none" and (section.name, kind.name) not in PLAIN:
                assert SOURCE.search(kind.meaning), f"{section.name}.{kind.name}: who made it?"


def test_every_option_says_what_it_is() -> None:
    for section in sections():
        shared = [option for family in section.families for option in family.options]
        own = [option for kind in section.kinds for option in kind.options]
        for option in (*section.options, *shared, *own):
            assert option.meaning.endswith("."), f"{section.path}.{option.name} has no sentence"
            assert option.values, option.name
            assert option.asks, option.name


@pytest.mark.slow
def test_the_page_renders_as_it_is_meant() -> None:
    html = MarkdownIt("commonmark").enable("table").render(PAGE)
    assert html.count("<table>") == PAGE.count("|---|---|---|---|")
    assert {len(re.findall("<td", row)) for row in re.findall("<tr>(.*?)</tr>", html, re.S)} == {
        0,
        4,
    }
    assert set(re.findall(r"<(?:em|strong)>(.*?)</", html)) == {"axis"}  # no formula became italics
    assert html.count("<a ") == len(re.findall(r"\]\(#", PAGE))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_builds(line: str) -> None:
    program, verb, base, *asks = shlex.split(line)
    assert (program, verb) == ("archwright", "train")
    if asks == ["--dry-run"]:
        return
    run = load_run(base).override(*asks)
    for ask in asks:
        path, _, value = ask.partition("=")
        assert _written(run.model_dump(), path, value)
    build(run.model, device="meta")


def test_every_choice_has_a_command_unless_it_cannot_be_had() -> None:
    kinds = sum(len(section.kinds) for section in sections())
    assert len(set(COMMANDS)) + PAGE.count("Not yet: ") > kinds
    assert "Not yet: " not in PAGE
    encoder = (
        "archwright train modern model.encoder.kind=stack objective.kind=span_corruption "
        "model.cross_attention.kind=softmax"
    )
    mask = "archwright train modern model.attention.mask.kind=full objective.kind=masked_tokens"
    objective = "archwright train modern objective.kind=prefix_lm model.attention.mask.kind=prefix"
    assert {encoder, mask, objective} <= {*COMMANDS}


OPTIONS = [
    pytest.param((*needs, *option.asks), id=f"{section.name}-{name}-{option.name}")
    for section in sections()
    for name, needs, options in (
        ("", (), section.options),
        *(
            (f.kinds[-1], next(k.asks for k in section.kinds if k.name == f.kinds[-1]), f.options)
            for f in section.families
        ),
        *((k.name, k.asks, k.options) for k in section.kinds if k.name != "stack"),
    )
    for option in options
]


@pytest.mark.parametrize("asks", OPTIONS)
def test_an_option_builds_as_it_is_asked_for(asks: tuple[str, ...]) -> None:
    given = {ask.partition("=")[0]: ask for ask in asks}  # the option's own comes last
    run = load_run("modern").override(*given.values())
    build(run.model, device="meta")
    assert all(ask.removeprefix("model.") in PAGE for ask in given.values())


@pytest.mark.slow
def test_the_file_and_the_python_on_the_page_say_the_same() -> None:
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert tomllib.loads(table)["attention"] == {"mask": {"kind": "window", "size": 64}}
    code, *models = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    place: dict[str, object] = {}
    exec("import archwright\n" + code, place)
    for model in models:
        exec("import archwright as aw\n" + model, {})
    first = shlex.split(COMMANDS[0])[3:]
    assert place["spec"] == load_run("modern").override(*first).model.override("name=modern")


def test_many_presets_are_counted() -> None:
    assert named(["a"]) == "a"
    assert named(["a", "b", "c"]) == "a, b and c"
    assert named([*"abcdefgh"]) == "a, b, c, d, e, f and others"
    assert named(["a-1", "a-2", "a-3", *"bcdef"]) == "a-1, b, c, d, e, f and others"


def _written(values: object, path: str, value: str) -> bool:
    """Tell whether a value stands where it was asked for."""
    for key in path.split("."):
        assert isinstance(values, dict)
        values = values[key]
    return str(values) == value or value.startswith("[") or float(value) == values


@pytest.mark.slow
def test_the_module_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "FILE", tmp_path / "catalogue.md")
    catalogue.write()
    assert (tmp_path / "catalogue.md").read_text("utf-8") == PAGE
