"""A notebook that is faked: IPython's display is a list."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class FakeNotebook:
    """What was displayed, by place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kernel: object = "a kernel") -> None:
        self.places: list[list[str]] = []
        module, display = ModuleType("IPython"), ModuleType("IPython.display")
        module.__dict__["get_ipython"] = lambda: SimpleNamespace(kernel=kernel)
        display.__dict__.update(HTML=str, display=self._display)
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def _display(self, html: str, *, display_id: bool) -> Any:
        assert display_id
        self.places.append([html])
        return SimpleNamespace(update=self.places[-1].append)
