"""How a loss is minimised: optimizers, parameter groups, schedules, clipping."""

from archwright.optim.clipping import clip_gradients
from archwright.optim.eager import AdamW
from archwright.optim.groups import Optimizers, build_optimizers, roles, set_learning_rates
from archwright.optim.muon import Muon
from archwright.optim.schedules import learning_rate, warmup_steps

__all__ = [
    "AdamW",
    "Muon",
    "Optimizers",
    "build_optimizers",
    "clip_gradients",
    "learning_rate",
    "roles",
    "set_learning_rates",
    "warmup_steps",
]
