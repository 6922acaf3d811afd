"""Studies made again from what they recorded."""

import sys
from pathlib import Path

import numpy as np
import pytest

from bench import choices
from bench.choices import Recorded, findings, recorded
from bench.replay import STUDIES

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "docs" / "ten-choices" / "0.2M"


@pytest.fixture(scope="module")
def variants() -> dict[str, Recorded]:
    return recorded(FOLDER, 0.01, 3.0)


def test_valleys_are_those_of_the_recorded_losses(variants: dict[str, Recorded]) -> None:
    assert [*variants][:2] == ["modern", "LayerNorm"]
    modern, post = variants["modern"], variants["post-norm"]
    # Tuned at 0.01 times 3 to the power 0, 1/2 and 1: 3.8806, 3.8758 and 3.9464.
    shift = modern.loss - modern.valley.losses(np.zeros(1))[0]
    for k, loss in ((0.0, 3.8806), (0.5, 3.8758), (1.0, 3.9464)):
        found = modern.valley.losses(np.array([k - modern.bottom]))[0] + shift
        lowest = modern.valley.losses(np.zeros(1))[0] + shift
        assert found - lowest == pytest.approx(loss - 3.8671, abs=0.004)
    assert post.valley.wall < 1
    assert np.isinf(modern.valley.wall)
    assert post.loss - modern.loss == pytest.approx(0.101, abs=0.02)
    assert variants["sinusoidal"].outcome == "worse"


def test_a_study_made_again_mostly_says_what_it_said(variants: dict[str, Recorded]) -> None:
    found = findings(variants, STUDIES["confirm"], range(4))
    assert found == findings(variants, STUDIES["confirm"], range(4), processes=2)
    assert np.mean([f.right for f in found]) > 8
    assert all(35 <= f.tuning <= 60 and 44 <= f.compared <= 110 for f in found)


def test_the_table_has_a_line_for_each_procedure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["choices", str(FOLDER), "--draws", "1"])
    choices.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [*STUDIES]
