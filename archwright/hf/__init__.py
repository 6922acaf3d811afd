"""Import and export of Hugging Face checkpoints.

`load(folder)` returns a model, its spec and its tokenizer. `save(model, folder)` writes a folder for `transformers`.
`as_pretrained(model)` wraps a model for trainers of `transformers` models.
`load_spec(folder)` needs only config.json. Names are imported on first use, so that configs are read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archwright.hf.configs import load_spec as load_spec
    from archwright.hf.exporting import exportable as exportable
    from archwright.hf.exporting import nearest_fit as nearest_fit
    from archwright.hf.families import FAMILIES as FAMILIES
    from archwright.hf.import_export import export_run as export_run
    from archwright.hf.import_export import import_run as import_run
    from archwright.hf.loading import Loaded as Loaded
    from archwright.hf.loading import load as load
    from archwright.hf.loading import load_model as load_model
    from archwright.hf.pretrained import as_pretrained as as_pretrained
    from archwright.hf.saving import save as save
    from archwright.hf.verifying import Certificate as Certificate
    from archwright.hf.verifying import verify as verify

_HOMES = {
    "Certificate": "archwright.hf.verifying",
    "FAMILIES": "archwright.hf.families",
    "Loaded": "archwright.hf.loading",
    "as_pretrained": "archwright.hf.pretrained",
    "export_run": "archwright.hf.import_export",
    "exportable": "archwright.hf.exporting",
    "import_run": "archwright.hf.import_export",
    "load": "archwright.hf.loading",
    "load_model": "archwright.hf.loading",
    "load_spec": "archwright.hf.configs",
    "nearest_fit": "archwright.hf.exporting",
    "save": "archwright.hf.saving",
    "verify": "archwright.hf.verifying",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'archwright.hf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
