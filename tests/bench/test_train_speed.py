import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.release


def test_a_shape_is_timed_beside_a_peer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    words = ["--shapes", "0.9M", "--contenders", "archwright", "transformers", "--no-compile"]
    words += ["--blocks", "3", "--minutes", "0.01", "--seconds", "0.05", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "bench/train_speed.py", *words, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (page,) = tmp_path.glob("*train-speed.md")
    rows = [line.split("|") for line in page.read_text("utf-8").splitlines() if "| 0.9M" in line]
    assert [row[2].strip() for row in rows] == ["archwright", "transformers"]
    assert all("MB" in row[7] and "s" in row[8] for row in rows)
