"""Estimates of a run beside what it took: as rows, as data, and on a page."""

import pytest

from archwright.reporting.document import Table
from archwright.reporting.estimates import (
    Estimate,
    Here,
    estimates_page,
    record,
    record_of_this_machine,
    this_machine_section,
)

FOUND = {
    "step": Estimate("a step", "seconds", 0.9, 1.2),
    "memory": Estimate("memory", "bytes", 3e9, 2e9),
}


def test_a_difference_is_a_share_of_what_it_took() -> None:
    assert FOUND["step"].row() == ("a step", "0.9 s", "1.2 s", "-25%")
    assert FOUND["memory"].row() == ("memory", "3 GB", "2 GB", "+50%")


def test_data_have_the_numbers_and_how_they_were_found() -> None:
    found = record("runs/small", FOUND)
    assert found["run"] == "runs/small"
    assert found["step_seconds"] == {
        "estimated": 0.9,
        "took": 1.2,
        "difference": pytest.approx(-0.25),
    }
    assert found["memory_bytes"]["difference"] == pytest.approx(0.5)
    assert found["evidence"] == {"estimated": "estimated", "took": "measured"}


def test_the_page_has_every_row_and_escapes_names() -> None:
    html = estimates_page("<script>x", "a machine", [*FOUND.values()]).html()
    assert "<script>x" not in html
    for each in FOUND.values():
        for cell in each.row():
            assert cell in html


def test_numbers_of_this_machine_say_how_they_were_found() -> None:
    here = Here("training", "training", 1500.0, "tokens/s", "", "estimated from rates measured now")
    assert here.row() == ("training", "1.5k tokens/s", "estimated from rates measured now")
    record = {"value": 1500.0, "unit": "tokens/s", "evidence": here.evidence}
    assert record_of_this_machine([here]) == {"training": record}
    (table,) = this_machine_section([here]).blocks
    assert isinstance(table, Table)
    assert table.rows[0].cells == here.row()
