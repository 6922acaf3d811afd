"""Pages of docs/course print what they record, and each of their statements has a verdict."""

import platform
import re
from pathlib import Path

import pytest
from matplotlib import pyplot as plt

from docs._make.course import FOLDER, WIDTH, Block, blocks, differences, pages, run
from docs._make.figures.__main__ import drawings
from docs._make.lecture import VERDICT
from tests.commands import commands, linked_files, read

PAGES = pages()
STATEMENT = re.compile(r"^### ", re.MULTILINE)
SOURCE = re.compile(r"^\*(Slides?|Notes?|Assignment)\b.*\*$", re.MULTILINE)
SLIDES = re.compile(r"[Ss]lides? (\d+)(?: (?:to|and) (\d+))?")
WITHOUT_CLAIMS = {1, 2, 3, 4, 20, 30, 36, 43, 46, 47, 62, 63, 64, 65, 66, 67, 68}
"""Slides with titles, summaries and references."""

OWN_SOURCE = re.compile(r"stdlib|os\.__file__")
"""What blocks that train on Python's library have."""


@pytest.fixture(autouse=True)
def width_of_recorded_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def statements(page: Path) -> list[str]:
    return STATEMENT.split(text_of(page))[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quick_blocks_print_what_is_recorded(page: Path) -> None:
    check(page, is_quick=True)


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_all_blocks_print_what_is_recorded(page: Path) -> None:
    check(page, is_quick=False)


def check(page: Path, *, is_quick: bool) -> None:
    text = text_of(page)
    if OWN_SOURCE.search(text) and f"Python {platform.python_version()}.*" not in text:
        pytest.skip("trained on Python's own source, and recorded with another Python")
    recorded = blocks(text)
    printed = list(run(recorded, is_quick))
    found = [d for a, b in zip(recorded, printed, strict=True) for d in differences(a, b)]
    assert not found, f'run `make course ARGS="{page.stem}"`'


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_statement_has_a_source_a_verdict_and_something_to_run(page: Path) -> None:
    for statement in statements(page):
        title = statement.partition("\n")[0]
        assert SOURCE.search(statement), title
        assert VERDICT.search(statement), title
        assert "```" in statement, title


def test_every_slide_is_claimed_or_has_no_claim() -> None:
    sources = [m[0] for page in PAGES for m in SOURCE.finditer(text_of(page))]
    ranges = [m.groups() for source in sources for m in SLIDES.finditer(source)]
    claimed = {slide for a, b in ranges for slide in range(int(a), int(b or a) + 1)}
    assert claimed.isdisjoint(WITHOUT_CLAIMS)
    assert claimed | WITHOUT_CLAIMS == {*range(1, 69)}


def test_each_figure_of_a_page_is_drawn_by_a_function() -> None:
    shown = {
        name for page in PAGES for name in re.findall(r"\(figures/(\w+)\.svg\)", text_of(page))
    }
    assert shown == {name for name, _ in drawings([])}
    assert shown == {file.stem for file in (FOLDER / "figures").glob("*.svg")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "draw"), [*drawings([])], ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_figure_can_be_drawn(name: str, draw) -> None:  # type: ignore[no-untyped-def]
    assert draw().axes, name
    plt.close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    assert all(file.exists() for file in linked_files(page))


@pytest.mark.parametrize("line", [line for page in PAGES for line in commands(text_of(page))])
def test_a_command_of_a_page_can_be_typed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read(line.partition(" | ")[0], monkeypatch)


def test_code_without_an_output_is_no_block() -> None:
    page = "```sh\narchwright list\n```\n\n```python\nprint(1)\n```\n\n```text\n1\n```"
    assert [block.code for block in blocks(page)] == ["print(1)\n"]


@pytest.mark.parametrize(
    ("recorded", "printed", "is_alike"),
    [
        ("loss 2.5000", "loss 2.5001", True),
        ("loss 2.5", "loss 2.6", False),
        ("12.5 ms, 3 runs", "99 ms, 3 runs", True),
        ("12.5 ms, 3 runs", "12.5 ms, 4 runs", False),
        ("error 3e-8", "error 1e-7", True),
        ("loss 2.5", "gain 2.5", False),
    ],
)
def test_numbers_are_compared_and_times_are_not(
    recorded: str, printed: str, is_alike: bool
) -> None:
    block = Block("python", "", recorded, 0, "")
    assert (differences(block, block._replace(output=printed)) == []) == is_alike
