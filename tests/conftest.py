"""What all tests share: shapes on public signatures are checked, every run is the same, one browser."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

from tests import selection
from tests.durations import Durations, Recorder
from tests.sentences import Sentences
from tests.visitor import Visitor

ROOMS = ("parts", "classic.parts", "cpu", "model", "losses", "optim", "generation")
jaxtyping.install_import_hook([f"archwright.{room}" for room in ROOMS], "beartype.beartype")

import torch  # noqa: E402
import torch.nn.attention.flex_attention  # noqa: E402

if not torch.cuda.is_available():  # read when Triton is first imported, by whomever
    os.environ.setdefault("TRITON_INTERPRET", "1")

# On a CPU, FlexAttention would trace every call with a compiler only to run it as it is.
torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # type: ignore[attr-defined]
torch.set_num_threads(1)
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

from archwright.spec.installed import load_classic  # noqa: E402

load_classic("parts")  # so that tests that list kinds or parts find all of them


UNCHECKED = {"checkpoint", "cli", "hf", "lab", "planning", "training"}
"""Rooms whose tests train whole runs, or build every published model: checks of shapes would take a quarter of their
time, and other tests call the same functions with them. Those of `tests/outside` train as well, and check them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew-sentences",
        action="store_true",
        help="write what is answered now into tests/sentences.toml, in place of what was expected",
    )
    parser.addoption(
        "--rotation",
        type=int,
        help="run the quick tests, guards and a slice of the rest: make test",
    )
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write durations into tests/durations.json, by which slices are filled",
    )


def pytest_configure(config: pytest.Config) -> None:
    selection.declare(config)
    if config.getoption("--record-durations"):
        config.pluginmanager.register(Recorder(config))
    if config.getoption("--renew-sentences") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--renew-sentences writes one file: leave out -n")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rotation = config.getoption("--rotation")
    config.hook.pytest_deselected(items=selection.apply(items, Durations.read(), rotation))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return selection.left_out(collection_path, config.getoption("-m")) or None


def pytest_runtest_setup(item: pytest.Item) -> None:
    jaxtyping.config.update("jaxtyping_disable", item.path.parent.name in UNCHECKED)


@pytest.fixture
def sentences(request: pytest.FixtureRequest) -> Sentences:
    """The exact sentences of `tests/sentences.toml`."""
    return Sentences(renew=request.config.getoption("--renew-sentences"))


@contextmanager
def _choices_as_they_are() -> Iterator[None]:
    """Inside, choices and parts may be added; they leave at the end."""
    from archwright.plugins import REGISTRIES
    from archwright.spec.choice import Choice

    tables = [axis.kinds for axis in Choice.axes()] + [*REGISTRIES.values()]
    before = [dict(table) for table in tables]
    yield
    for table, contents in zip(tables, before, strict=True):
        table.clear()
        table.update(contents)


@pytest.fixture
def visitors() -> Iterator[None]:
    """Let a test add choices and parts; they leave with it."""
    with _choices_as_they_are():
        yield


@pytest.fixture(scope="module", autouse=True)
def _visitors_of_a_file() -> Iterator[None]:
    """No choice outlives the file whose commands loaded it: with one of them, listings are made anew each time."""
    with _choices_as_they_are():
        yield


QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium, driven by playwright; where there is none, its tests are skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip("no Chromium on this machine: pages were not looked at")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def visitor(chromium: Any) -> Visitor:
    return Visitor(chromium)


@pytest.fixture(scope="module")
def shared(visitor: Visitor, report: Path) -> Any:
    """The page of a module's `report`, open all the time."""
    return visitor.open(report)


@pytest.fixture
def tab(shared: Any) -> Iterator[Any]:
    """That page in a wide, light window; what a test changes is undone."""
    yield shared
    shared.set_viewport_size({"width": 1200, "height": 800})
    shared.emulate_media(color_scheme="light")
    for option in ("Tokens", "Linear"):
        shared.get_by_role("radio", name=option).first.click()
    shared.mouse.move(0, 0)
    shared.wait_for_timeout(200)
