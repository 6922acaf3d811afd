"""Specs of the public API: overrides and notebook display."""

from collections.abc import Mapping
from typing import Any, Self

from archwright.notebook import html_table
from archwright.spec.choice import Spec
from archwright.spec.overrides import assignments_of, dump, flatten, override, toml_value


class Shown(Spec):
    """A model, a run or a study, displayed with its values that differ from the defaults."""

    def override(self, *assignments: str | Mapping[str, Any], **values: Any) -> Self:
        """Return this spec with values replaced.

            spec.override("dim=256", "attention.num_kv_heads=2")
            spec.override(dim=256, attention=dict(num_kv_heads=2))
            run.override({"model.dim": 256}, seed=1)

        A dict replaces the values that it names and leaves the other values of its table. A run also takes keys of its
        model. A new `kind` drops the options of the previous kind.

        Raises:
            UserError: Unknown paths or values out of range, one per line.
        """
        return override(self, assignments_of(*assignments, values))

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return html_table(repr(self), ("key", "value"), changed(self).items())


def changed(spec: Spec) -> dict[str, str]:
    """Return the values that differ from the defaults by dotted path, in TOML, without sources."""
    defaults = flatten(dump(type(spec)()))
    return {
        path: toml_value(value)
        for path, value in flatten(dump(spec)).items()
        if "source" not in path and defaults.get(path) != value
    }
