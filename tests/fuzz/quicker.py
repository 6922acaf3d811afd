"""What depends on no case is computed once: thousands of cases are then read in minutes."""

from typing import Any

import jinja2
import plotly.offline

from archwright.spec import overrides


def remember() -> None:
    """Keep the page's compiled template and the paths of a spec's class; leave the drawing library out of pages."""
    _templates()
    _paths()
    plotly.offline.get_plotlyjs = lambda: "plotly"


def _templates() -> None:
    plain: Any = jinja2.Environment.compile
    kept: dict[str, Any] = {}

    def compile(self: Any, source: Any, name: str, *rest: Any) -> Any:
        if name not in kept:
            kept[name] = plain(self, source, name, *rest)
        return kept[name]

    jinja2.Environment.compile = compile  # type: ignore[method-assign]


def _paths() -> None:
    plain: Any = overrides.paths
    kept: dict[Any, list[str]] = {}

    def paths(cls: Any, prefix: str = "") -> Any:
        if (cls, prefix) not in kept:
            kept[cls, prefix] = list(plain(cls, prefix))
        return iter(kept[cls, prefix])

    overrides.paths = paths
