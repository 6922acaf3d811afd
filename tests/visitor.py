"""A reader of pages in a headless browser, and what such a reader looks at."""

from pathlib import Path
from typing import Any


class Visitor:
    """Opens pages, and keeps what they asked for and what they complained of."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.num_pages = 0

    def open(self, path: Path, width: int = 1200, **settings: Any) -> Any:
        """Open a page in a window of its own, and wait until its charts are drawn."""
        tab = self.browser.new_page(viewport={"width": width, "height": 800}, **settings)
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.on("console", lambda message: self.complaints.append(message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        self.num_pages += 1
        return tab

    def check(self) -> None:
        """Assert that pages asked for nothing but themselves, and that nothing went wrong in them."""
        files = [url for url in self.requests if url.startswith("file:")]
        others = [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert len(files) == self.num_pages
        assert others == []
        assert self.complaints == []


def style(tab: Any, selector: str, name: str) -> str:
    """Return a computed style."""
    script = "([s, n]) => getComputedStyle(document.querySelector(s)).getPropertyValue(n)"
    return str(tab.evaluate(script, [selector, name]))


def of_plots(tab: Any, expression: str) -> list[Any]:
    """Return the value of an expression in `p` for every chart."""
    script = f"[...document.querySelectorAll('.plot')].map(p => {expression})"
    return list(tab.evaluate(script))


def ranges(tab: Any) -> list[list[float]]:
    """Return what every chart shows of its horizontal axis."""
    return [[float(end) for end in pair] for pair in of_plots(tab, "p._fullLayout.xaxis.range")]


def saved(tab: Any, label: str) -> bytes:
    """Press the button of this label, and return the file that it saves."""
    with tab.expect_download() as download:
        tab.get_by_label(label).click()
    return Path(download.value.path()).read_bytes()
