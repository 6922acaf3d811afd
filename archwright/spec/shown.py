"""Specs as notebooks show them: what differs from the defaults."""

from archwright.notebook import html_table
from archwright.spec.choice import Spec
from archwright.spec.overrides import dump, flatten, toml_value


def as_html(spec: Spec) -> str:
    """Return a spec in a line, and a table of the values that are not the defaults."""
    return html_table(repr(spec), ("key", "value"), changed(spec).items())


def changed(spec: Spec) -> dict[str, str]:
    """Return the values that are not the defaults by dotted path, as a file writes them; without their sources."""
    defaults = flatten(dump(type(spec)()))
    return {
        path: toml_value(value)
        for path, value in flatten(dump(spec)).items()
        if "source" not in path and defaults.get(path) != value
    }
