"""Calls from compiled layers. Import it only during compilation: it loads the compiler, which takes seconds."""

from collections.abc import Callable
from typing import Any

import torch


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


outside_graph = torch.compiler.disable(_call)
"""Call a function in eager mode, between two graphs."""
