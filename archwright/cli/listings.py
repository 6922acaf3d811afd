"""What `make docs` made of presets and tables of choices, for verbs that answer at once."""

import json
import sys
from pathlib import Path
from typing import Any

from archwright import presets

FOLDER = Path(presets.__path__[0]) / "listings"


def listing(name: str, *, resolve: bool = False) -> Any:
    """Return a listing as it was made with the package; `resolve` makes it now, with choices that joined.

    Where choices can have joined already, in a process that has what registers them, it is made now, too.
    """
    if resolve or "archwright.plugins" in sys.modules:
        from archwright.reporting.listings import LISTINGS

        return LISTINGS[name]()
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
