"""A copy of the package without archwright/classic."""

import shutil
from pathlib import Path

import pytest

from tests.tiny import ROOT, write_text


@pytest.fixture(scope="package")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the copy, with a text."""
    folder = tmp_path_factory.mktemp("without")
    left_out = shutil.ignore_patterns("classic", "__pycache__")
    shutil.copytree(ROOT / "archwright", folder / "archwright", ignore=left_out)
    write_text(folder / "text.txt")
    return folder
