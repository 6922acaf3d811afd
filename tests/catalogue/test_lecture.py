"""The lecture's table against the one that `archwright list` derives from the presets: what differs is a known mistake
of the lecture's. The page is what is written from both, and its commands can be typed."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from archwright.catalogue.table import rows
from archwright.spec.attention import MaskedAttention, SoftmaxAttention
from archwright.spec.latent import LatentAttention
from archwright.spec.read import load, preset_names
from archwright.spec.unpublished import unpublished
from docs._make import lecture
from docs._make.lecture import Correction, Row, corrections, in_lecture_words, table
from tests.commands import commands, linked_files, read

TABLE = table()
NAMED = [row for row in TABLE if row.preset]
CORRECTIONS = corrections().corrections
REMARKS = corrections().remarks
DERIVED = {row.name: row.cells for row in rows()}
PAGE = lecture.FILE.read_text("utf-8")


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.preset)
def test_a_row_follows_from_its_preset(row: Row) -> None:
    """An empty cell says nothing, except that there is no stability trick."""
    corrected = {
        c.column: c.corrected for c in CORRECTIONS if (c.name, c.year) == (row.name, row.year)
    }
    derived = in_lecture_words(DERIVED[row.preset])
    expected = row.statements | corrected
    assert {column: derived[column] for column in expected} == expected
    needless = [c for c, text in corrected.items() if row.statements.get(c) == text]
    assert not needless


@pytest.mark.parametrize("row", [row for row in TABLE if row.also], ids=lambda row: row.also)
def test_a_row_holds_for_the_other_model_that_it_names(row: Row) -> None:
    derived = in_lecture_words(DERIVED[row.also])
    assert {column: derived[column] for column in row.statements} == row.statements


def test_every_row_has_a_preset_or_is_that_of_t5_v1_1() -> None:
    (phantom,) = (row for row in TABLE if not row.preset)
    assert (phantom.name, phantom.year) == ("GPT2", "2020")
    assert len({row.preset for row in NAMED}) == 37
    derived = in_lecture_words(DERIVED["t5-v1.1-xxl"])
    assert {column: derived[column] for column in phantom.statements} == phantom.statements


def test_every_correction_and_remark_is_of_a_row() -> None:
    known = {(row.name, row.year) for row in NAMED}
    assert len(CORRECTIONS) == 16
    assert all((c.name, c.year) in known and c.reason and c.evidence for c in CORRECTIONS)
    assert all((r.name, r.year) in known for r in REMARKS)


@pytest.mark.parametrize(
    "correction", [c for c in CORRECTIONS if c.code], ids=lambda c: f"{c.name}-{c.column}"
)
def test_published_code_is_the_evidence_that_is_named(correction: Correction) -> None:
    found = metadata.distribution("transformers").locate_file("transformers/models")
    text = Path(str(found), correction.code).read_text("utf-8")
    assert correction.lines
    assert all(line in text for line in correction.lines)


def test_the_page_is_the_one_that_the_data_make() -> None:
    assert lecture.markdown() == PAGE, "run `make docs`"


def test_every_link_of_the_page_leads_somewhere() -> None:
    assert all(file.exists() for file in linked_files(lecture.FILE))
    titles = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    assert {*re.findall(r"\]\(#(.*?)\)", PAGE)} <= anchors


@pytest.mark.parametrize("line", commands(PAGE))
def test_a_command_of_the_page_can_be_typed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read(line, monkeypatch)


@pytest.mark.parametrize("name", unpublished())
def test_what_is_unpublished_is_listed_with_what_is_public(name: str) -> None:
    model = unpublished()[name]
    assert name not in preset_names("models")
    assert model.known.items() <= DERIVED[name].items()
    assert DERIVED[name]["year"] in model.source


@pytest.mark.parametrize("name", preset_names("models"))
def test_every_model_has_its_year_and_the_widths_of_its_spec(name: str) -> None:
    cells, spec = DERIVED[name], load(name).resolved()
    assert 2017 <= int(cells["year"]) <= 2026
    assert cells["layers"] == str(spec.num_layers)
    # Of a hybrid, its layers with attention.
    attentions = [layer.attention for layer in spec.layers_by_kind.values()]
    attention = min(attentions, key=lambda choice: choice.is_none)
    shown = cells["heads"].split(" + ")
    if attention.is_none:
        assert not any(part[0].isdigit() for part in shown)
    elif isinstance(attention, LatentAttention):
        assert f"{attention.num_heads} MLA" in shown
    elif isinstance(attention, SoftmaxAttention):
        heads = f"{attention.num_heads}/{attention.num_kv_heads}"
        assert heads == next(part for part in shown if part[0].isdigit())
    else:  # whose heads share no keys
        assert isinstance(attention, MaskedAttention)
        assert cells["heads"].replace("/", " ").split()[0] == str(attention.num_heads)
