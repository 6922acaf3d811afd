"""The driver of the GPU check: stages in processes of their own, with numbers that outlive them."""

from pathlib import Path
from typing import Any

import pytest

from bench import gpu_check

FAKE = """
import json, sys, time
stage, out = sys.argv[1], sys.argv[sys.argv.index("--out") + 1]
with open(out, "a") as file:
    file.write(json.dumps({"stage": stage, "key": "speed", "value": 7.5, "unit": "ms"}) + "\\n")
if stage == "syncs":
    file = open(out, "a"); file.write("{half of a"); sys.exit("a kernel failed")
if stage == "loss":
    time.sleep(60)
"""


def check(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> list[dict[str, Any]]:
    monkeypatch.setattr("sys.argv", ["gpu_check", "--device", "cpu", "--out", str(out), *words])
    gpu_check.main()
    return gpu_check.read(out / "results.jsonl")


def ends(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["stage"]: row["value"] for row in rows if row["key"] == "end"}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stages that take no time."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "gpu_stages.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    monkeypatch.setitem(gpu_check.LIMITS, "loss", 1)
    return tmp_path / "out"


def test_a_stage_that_ends_badly_costs_only_itself(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = check(monkeypatch, fake, "machine", "syncs", "loss", "decode")
    assert ends(rows) == {
        "machine": "ok",
        "syncs": "failed: a kernel failed",
        "loss": "stopped after 1 s",
        "decode": "ok",
    }
    assert [row["stage"] for row in rows if row["key"] == "speed"][:2] == ["machine", "syncs"]
    again = check(monkeypatch, fake, "machine", "syncs", "decode", "--resume")
    assert [row["stage"] for row in again[len(rows) :] if row["key"] == "speed"] == ["syncs"]


def test_what_does_not_fit_is_skipped_and_said(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = check(monkeypatch, fake, "machine", "--seconds", "10")
    assert ends(rows) == {"machine": "skipped: 10 s were left"}


def test_an_unknown_stage_is_named(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        check(monkeypatch, fake, "decoding")
    assert "stage: found decoding; expected some of machine" in capsys.readouterr().err


@pytest.mark.slow
def test_all_stages_run_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = check(monkeypatch, tmp_path, "--tiny", "--seconds", "1800")
    assert ends(rows) == dict.fromkeys(gpu_check.LIMITS, "ok")
    assert not [row for row in rows if "FAIL" in row["unit"]]
    refused = {row["key"] for row in rows if row["unit"] == "error"}
    assert refused <= {"liger", "fp8"}
