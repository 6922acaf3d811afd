"""Models with an unpublished architecture: public facts, for tables."""

import tomllib

from pydantic import Field

from archwright import presets
from archwright.spec.choice import Spec
from archwright.spec.errors import UserError

FOLDER = presets.FOLDER / "unpublished"


class Unpublished(Spec):
    """A model for listings only."""

    source: str
    """Source of the public facts."""
    unpublished: str
    """The missing choice."""
    known: dict[str, str] = Field(default_factory=dict)
    """Cells of the table of architectures, by column."""


def unpublished() -> dict[str, Unpublished]:
    """Return all models with an unpublished architecture by name."""
    files = (file for file in FOLDER.iterdir() if file.name.endswith(".toml"))
    return {
        file.name.removesuffix(".toml"): Unpublished.model_validate(
            tomllib.loads(file.read_text(encoding="utf-8"))
        )
        for file in sorted(files, key=lambda file: file.name)
    }


def refuse_unpublished(name: str) -> None:
    """Raise a UserError with the reason if a model's architecture is unpublished."""
    if (model := unpublished().get(name)) is not None:
        raise UserError(
            f'"{name}": its architecture is unpublished, so there is nothing to build: '
            f"{model.unpublished} ({model.source})"
        )
