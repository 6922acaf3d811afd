"""Numbers of parameters, counted when the package was made, for verbs that wait for nothing."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from archwright import presets


@dataclass(frozen=True)
class Counts:
    """Numbers of parameters: of each part, and how many one token meets, which of experts are few."""

    parts: dict[str, int]
    active: int

    @property
    def total(self) -> int:
        """The number of all parameters."""
        return sum(self.parts.values())

    def as_table(self) -> dict[str, Any]:
        """Return these numbers as JSON has them."""
        return asdict(self)


def parameter_counts() -> dict[str, Counts]:
    """Return the numbers of parameters of each preset."""
    file = presets.FOLDER / "parameters.json"
    return {n: Counts(**table) for n, table in json.loads(file.read_text(encoding="utf-8")).items()}
