"""Estimates of a run beside what it took: as rows, as data, and on a page."""

import pytest

from archwright.reporting.document import Table
from archwright.reporting.estimate_errors import estimate_errors
from archwright.reporting.estimates import (
    Estimate,
    Here,
    Machines,
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
    found = record("runs/small", FOUND, Machines("a machine", "another"))
    assert found["run"] == "runs/small"
    assert found["step_seconds"] == {
        "estimated": 0.9,
        "took": 1.2,
        "difference": pytest.approx(-0.25),
    }
    assert found["memory_bytes"]["difference"] == pytest.approx(0.5)
    assert found["evidence"] == {"estimated": "estimated", "took": "measured"}
    assert found["machines"] == {"trained": "a machine", "estimated": "another"}


def test_the_page_has_every_row_and_escapes_names() -> None:
    html = estimates_page("<script>x", Machines("", "<b>a"), [*FOUND.values()]).html()
    assert "<script>x" not in html
    assert "<b>a" not in html
    assert "Where the run was trained is not recorded" in html
    for each in FOUND.values():
        for cell in each.row():
            assert cell in html


def test_numbers_of_this_machine_say_how_they_were_found() -> None:
    training = Here("training", "training", 1500.0, "tokens/s", "", "estimated from rates", "step")
    counted = Here("weights", "weights", 3e9, "bytes", "fp32", "counted")
    assert training.row() == ("training", "1.5k tokens/s", "estimated from rates")
    assert counted.row() == ("weights", "3 GB", "fp32; counted")
    found = record_of_this_machine([training, counted])
    value = {"value": 1500.0, "unit": "tokens/s", "evidence": training.evidence}
    assert found["training"] == value | {"benchmark_error": estimate_errors()["step"].record()}
    value = {"value": 3e9, "unit": "bytes", "evidence": "counted"}
    assert found["weights"] == value | {"benchmark_error": None}
    table = this_machine_section([training, counted]).blocks[0]
    assert isinstance(table, Table)
    assert [row.cells for row in table.rows] == [training.row(), counted.row()]
