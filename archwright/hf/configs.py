"""Read config.json of a Hugging Face folder: its family and its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archwright.hf.families import FAMILIES
from archwright.hf.family import Family
from archwright.hf.multimodal import WRAPPERS, Wrapper
from archwright.spec.absent import refuse_absent
from archwright.spec.errors import UserError, hub_hint, nearest
from archwright.spec.model_spec import ModelSpec
from archwright.text.json_table import read_table

FILE = "config.json"


def load_spec(config: str | Path | Mapping[str, Any]) -> ModelSpec:
    """Return the spec of a config.json, without reading weights.

    Args:
        config: Path of the file or of its folder, or the parsed table.

    Raises:
        UserError: The file is missing or damaged, or has unsupported values; a line per problem.
    """
    if isinstance(config, Mapping):
        return spec_of(dict(config), FILE, "")
    path = Path(config)
    file = path if path.name == FILE and not path.is_dir() else path / FILE
    table = read_table(file) if file == path else read_config(path)
    return spec_of(table, str(file), file.resolve().parent.name)


def spec_of(table: dict[str, Any], file: str, name: str) -> ModelSpec:
    """Return the spec of a parsed config.json; errors name `file`."""
    config, _ = text_config(table)
    family = family_of(config, file)
    try:
        return family.spec(config, name=name)
    except UserError as error:
        folder = file.removesuffix(FILE).rstrip("/")
        raise UserError(
            *(f"{folder}: {line}" if folder else line for line in error.lines)
        ) from None


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's config.json."""
    if not folder.is_dir():
        near = nearest(folder.name, [p.name for p in folder.parent.glob("*")])
        raise UserError(f"{folder}: there is no such folder.{near or hub_hint(str(folder))}")
    return read_table(folder / FILE)


def text_config(config: dict[str, Any]) -> tuple[dict[str, Any], Wrapper | None]:
    """Return the text model's config, and the `Wrapper` of a multimodal model, otherwise None."""
    kind = config.get("model_type")
    wrapper = WRAPPERS.get(kind) if isinstance(kind, str) else None
    return (config, None) if wrapper is None else (wrapper.config(config), wrapper)


def family_of(config: Mapping[str, object], file: str) -> Family:
    """Return the family of a config; errors name `file`.

    Raises:
        UserError: The `model_type` is unknown, or the weights are quantized.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = nearest(kind, FAMILIES) if isinstance(kind, str) else ""
        refuse_absent(str(kind), f"{file}: model_type: ")
        raise UserError(
            f"{file}: model_type: found {repr(kind)[:80]}; "
            f"expected one of {len(FAMILIES)} families (see archwright list families).{near}"
        )
    if config.get("quantization_config"):
        raise UserError(
            f"{file}: quantization_config: found compressed weights; expected float32, "
            "bfloat16 or float16. Save the model in one of these first"
        )
    return FAMILIES[kind]
