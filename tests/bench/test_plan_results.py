"""The page's tables of errors are those that plans read."""

import json
from pathlib import Path

import pytest

from bench import plan_results
from bench.plan_results import PAGE, compared, with_table, write


def test_the_page_has_what_is_recorded() -> None:
    page = PAGE.read_text("utf-8")
    assert with_table(with_table(page, "memory"), "speed") == page


def test_what_was_measured_is_recorded_and_put_into_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, page = tmp_path / "plan.json", tmp_path / "planning.md"
    file.write_text('{"memory": {"machine": "Z80", "benchmarks": []}}')
    page.write_text(
        "a\n<!-- speed: python -m bench.plan_speed -->\nold\n<!-- end of speed -->\nb\n"
    )
    monkeypatch.setattr(plan_results, "FILE", file)
    monkeypatch.setattr(plan_results, "PAGE", page)
    monkeypatch.setattr("archwright.reporting.estimate_errors.FILE", file)
    write("speed", [compared("step dim=8", 0.2, 0.15, 1e-3), compared("decode", 0.1, 0.11, 1e-3)])
    found = json.loads(file.read_text())
    assert found["memory"]["machine"] == "Z80"
    first = found["speed"]["benchmarks"][0]
    assert first == {"what": "step dim=8", "measured": 200, "estimated": 150, "error": -0.25}
    text = page.read_text()
    assert "| step dim=8 | 200.00 | 150.00 | -25% |" in text
    assert "Median error 18%, largest 25%." in text
    assert "old" not in text
    assert (text[:2], text[-3:]) == ("a\n", "\nb\n")
