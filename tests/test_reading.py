"""The way through the code that docs/reading.md shows is there."""

import re

import pytest

from tests.tiny import ROOT

TEXT = (ROOT / "docs" / "reading.md").read_text("utf-8")
LINKS = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", TEXT)


@pytest.mark.parametrize(("name", "path"), LINKS, ids=lambda word: word)
def test_a_name_stands_in_its_file(name: str, path: str) -> None:
    file = ROOT / "docs" / path
    assert file.is_file()
    if file.suffix == ".py" and name.startswith("`"):
        word = name.strip("`")
        defined = rf"^(?:def|class) {word}\b|^{word}(?:: [^=]+)? = "
        assert re.search(defined, file.read_text("utf-8"), re.M), f"{word} is not in {path}"
