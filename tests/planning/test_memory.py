"""Free memory of a machine and of a container."""

from pathlib import Path

import pytest

from archwright.planning import memory


def test_a_container_has_no_more_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached files give way to a process."""
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    free = memory.free_memory("cpu")
    for name, text in {
        "memory.max": "5000\n",
        "memory.current": "4000\n",
        "memory.stat": "anon 1\ninactive_file 300\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert memory.free_memory("cpu") == 1300 < free
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory("cpu") > 1300
