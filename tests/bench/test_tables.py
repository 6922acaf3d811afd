"""Tables of docs/calibration.md, from the recorded pool of losses."""

import sys
from pathlib import Path

import pytest

from bench import unlike

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.release


def test_equal_variants_are_seldom_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(DOCS / "unlike-pool.csv"), "--draws", "40", "--seeds", "9"]
    monkeypatch.setattr(sys, "argv", ["unlike", *words])
    unlike.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 6
    assert all(float(line.split("|")[4].strip().rstrip("%")) < 15 for line in lines[2:5])
