"""Checkpoints of the ecosystem, in and out.

load(folder) returns a model, its spec and its tokenizer; save(model, folder) writes what `transformers` loads.
load_spec(folder) needs config.json alone.
"""

from archwright.hf.configs import load_spec as load_spec
from archwright.hf.exporting import exportable as exportable
from archwright.hf.exporting import nearest_fit as nearest_fit
from archwright.hf.families import FAMILIES as FAMILIES
from archwright.hf.import_export import export_run as export_run
from archwright.hf.import_export import import_run as import_run
from archwright.hf.loading import Loaded as Loaded
from archwright.hf.loading import load as load
from archwright.hf.saving import save as save
from archwright.hf.verifying import Certificate as Certificate
from archwright.hf.verifying import verify as verify
