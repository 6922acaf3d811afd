from pathlib import Path

import pytest

from tests.cli.typing_commands import FILES


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own, outside the folder it works in."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a test types its commands, in a terminal of 100 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def files(place: Path) -> Path:
    for name, content in FILES.items():
        data = content.encode() if isinstance(content, str) else content
        (place / name).write_bytes(data)
    return place
