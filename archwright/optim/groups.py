"""Assignment of parameters to optimizers and weight decay."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from archwright.model.model import Decoder
from archwright.optim.eager import AdamW
from archwright.optim.muon import Muon
from archwright.parts import branch
from archwright.parts.linear import Embedding, GroupedLinear, Linear
from archwright.parts.norms import NORMS
from archwright.parts.registry import Registry
from archwright.spec.errors import UserError, nearest
from archwright.spec.optimizers import SGD as SGDSpec  # noqa: N811
from archwright.spec.optimizers import AdamW as AdamWSpec
from archwright.spec.optimizers import Muon as MuonSpec
from archwright.spec.optimizers import Optimizer as OptimizerSpec

Role = Literal["embedding", "head"] | branch.Role
Parameters = list[tuple[str, nn.Parameter]]
Optimizers = dict[str, torch.optim.Optimizer]

FUSED = {"cpu", "cuda"}
"""Devices with a fused AdamW in all supported torch versions."""


def build_optimizers(
    model: nn.Module, spec: OptimizerSpec, *, precision: torch.dtype = torch.float32
) -> Optimizers:
    """Return the optimizers of all trainable parameters, by name.

    `precision` is the dtype of the run's matmuls; Muon iterates in bfloat16 or float32 accordingly. Every parameter
    group stores its peak learning rate as "initial_lr" for `set_learning_rates`. The `lr_scales` of a language model
    multiply AdamW's learning rate by role (muP); their square roots multiply Muon's.

    Raises:
        ValueError: the model has no trainable parameters.
        UserError: the optimizer has no part, or does not update all parameters.
    """
    by_role: dict[Role, Parameters] = defaultdict(list)
    role_of = roles(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            by_role[role_of[name]].append((name, parameter))
    if not by_role:
        raise ValueError("the model has no trainable parameters: unfreeze some before training")
    lr_scales = model.lr_scales if isinstance(model, Decoder) else {}
    optimizers: Optimizers = OPTIMIZERS.make(spec, by_role, precision, lr_scales)
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    moved = {id(parameter) for group in groups for parameter in group["params"]}
    left = [name for named in by_role.values() for name, p in named if id(p) not in moved]
    if left:
        raise UserError(
            f'optimizer.kind = "{spec.kind}": moves no {left[0]}'
            f"{f', nor {len(left) - 1} others' if left[1:] else ''}; expected optimizers of all parameters"
        )
    for group in groups:
        group["initial_lr"] = group["lr"]
    return optimizers


def set_learning_rates(optimizers: Mapping[str, torch.optim.Optimizer], share: float) -> None:
    """Set the learning rate of every parameter group to a share of its peak."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * share


def roles(model: nn.Module) -> dict[str, Role]:
    """Return the role of each parameter by its name, as in `model.named_parameters()`.

    The `roles` attribute of a module takes precedence. Other parameters:
    embedding: the table of an embedding module, also if the head shares it.
    head: the map to the vocabulary, in a module named `head`. Outside of language models, the last matrix is the head
        if it has the shape of the largest embedding.
    kernel: the weight of a convolution. vector: a parameter with fewer than two axes, a norm weight, or a bias of
        grouped maps.
    matrix: all other parameters; more than two axes are a stack of matrices, as in experts.

    Raises:
        UserError: `roles` of a module names no parameter, or an unknown role.
    """
    by_name, stated = dict[str, Role](), _stated(model)
    for name, role in _usual_roles(model).items():
        matrix: Role = "head" if "head" in name.split(".")[-2:-1] else "matrix"
        by_name[name] = stated.get(name, matrix if role in (None, "matrix") else role)
    if "head" not in by_name.values() and not isinstance(model, Decoder):
        by_name.update(_head_by_shape(model, by_name))
    return by_name


def without_role(model: nn.Module) -> list[str]:
    """Return the names of parameters without a role, which are matrices by default."""
    return [
        n for n, role in _usual_roles(model).items() if role is None and n not in _stated(model)
    ]


def _usual_roles(model: nn.Module) -> dict[str, Role | None]:
    """Return the role of each parameter by module type and shape; None for other module types."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    by_name: dict[str, Role | None] = {}
    norms = tuple(part for part in NORMS.values() if isinstance(part, type))
    for name, parameter in model.named_parameters():
        owner = modules[name.rpartition(".")[0]]
        biases = isinstance(owner, GroupedLinear) and name.endswith(".bias")
        if parameter.ndim < 2 or isinstance(owner, norms) or biases:
            by_name[name] = "vector"
        elif isinstance(owner, nn.Embedding | nn.EmbeddingBag | Embedding):
            by_name[name] = "embedding"
        elif isinstance(owner, _ConvNd):
            by_name[name] = "kernel"
        else:
            by_name[name] = "matrix" if isinstance(owner, nn.Linear | Linear) else None
    return by_name


def _stated(model: nn.Module) -> dict[str, Role]:
    """Return the roles from `roles` attributes by full parameter name."""
    by_name: dict[str, Role] = {}
    for prefix, module in model.named_modules():
        for name, role in module.roles.items() if isinstance(module, branch.HasRoles) else ():
            names = [n for n, _ in module.named_parameters()]
            if name not in names or role not in get_args(branch.Role):
                raise UserError(
                    f'{type(module).__name__}.roles: found "{name}": "{role}"; expected parameters of the module with '
                    f"one of the roles {', '.join(get_args(branch.Role))}.{nearest(name, names)}"
                )
            by_name[f"{prefix}.{name}".removeprefix(".")] = role
    return by_name


def _head_by_shape(model: nn.Module, by_name: Mapping[str, Role]) -> dict[str, Role]:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    tables = [shapes[name] for name, role in by_name.items() if role == "embedding"]
    matrices = [name for name, role in by_name.items() if role == "matrix"]
    if tables and matrices:
        vocabulary = max(tables, key=lambda shape: shape.numel())
        heads = [name for name in matrices if shapes[name] == vocabulary]
        # The head is the last matrix; earlier matrices may have the same shape by coincidence.
        if heads and heads[-1] == matrices[-1]:
            return {heads[-1]: "head"}
    return {}


def parameter_groups(
    by_role: Mapping[Role, Parameters],
    lr: float,
    weight_decay: float,
    lr_scales: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return parameter groups with weight decay for all roles except vectors, as in common GPT-3 and LLaMA
    reproductions. Biases and gains have a natural scale that decay would reduce."""
    alike: dict[tuple[bool, float], Parameters] = defaultdict(list)
    for role, named in by_role.items():
        alike[role != "vector", lr_scales.get(role, 1.0)] += named
    # A step subtracts the share lr * weight_decay of a weight, which must not depend on the learning-rate scale.
    return [
        {
            "params": alike[decays, scale],
            "lr": lr * scale,
            "weight_decay": weight_decay / scale if decays else 0.0,
        }
        for decays, scale in sorted(alike, reverse=True)
    ]


def _adamw(
    spec: AdamWSpec,
    by_role: Mapping[Role, Parameters],
    precision: torch.dtype,
    lr_scales: Mapping[str, float],
) -> Optimizers:
    return {"adamw": _fused_adamw(by_role, spec.lr, spec, lr_scales)}


def _sgd(
    spec: SGDSpec,
    by_role: Mapping[Role, Parameters],
    precision: torch.dtype,
    lr_scales: Mapping[str, float],
) -> Optimizers:
    """w = w - lr M, M = momentum M + g + weight_decay w, for all roles; muP's rates are for AdamW and not applied."""
    groups = parameter_groups(by_role, spec.lr, spec.weight_decay, {})
    return {"sgd": torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum)}


def _muon(
    spec: MuonSpec,
    by_role: Mapping[Role, Parameters],
    precision: torch.dtype,
    lr_scales: Mapping[str, float],
) -> Optimizers:
    """Return Muon for matrices and AdamW for all other roles.

    An update has the spectral norm lr 0.2 sqrt(max(d_out, d_in)), which grows with sqrt(m), m = dim / base_dim. muP
    keeps it constant: it scales AdamW's learning rate by 1 / m, and Muon's by 1 / sqrt(m).
    """
    rest: dict[Role, Parameters] = {r: named for r, named in by_role.items() if r != "matrix"}
    optimizers: Optimizers = {}
    if rest:
        lr = spec.lr if spec.adamw_lr == "auto" else spec.adamw_lr
        optimizers["adamw"] = _fused_adamw(rest, lr, spec, lr_scales)
    if by_role.get("matrix"):
        matrices: dict[Role, Parameters] = {"matrix": by_role["matrix"]}
        scales = {"matrix": math.sqrt(lr_scales.get("matrix", 1.0))}
        optimizers["muon"] = Muon(
            parameter_groups(matrices, spec.lr, spec.weight_decay, scales),
            momentum=spec.momentum,
            nesterov=spec.nesterov,
            method=spec.method,
            steps=spec.steps,
            dtype=torch.bfloat16 if precision == torch.bfloat16 else torch.float32,
        )
    return optimizers


def _fused_adamw(
    by_role: Mapping[Role, Parameters],
    lr: float,
    spec: AdamWSpec | MuonSpec,
    lr_scales: Mapping[str, float],
) -> AdamW:
    groups = parameter_groups(by_role, lr, spec.weight_decay, lr_scales)
    fused = all(p.device.type in FUSED for group in groups for _, p in group["params"])
    return AdamW(groups, lr=lr, betas=spec.betas, eps=spec.eps, fused=fused or None)


OPTIMIZERS = Registry(
    OptimizerSpec,
    "(spec, by_role, precision, lr_scales)",
    dict,
    {AdamWSpec: _adamw, MuonSpec: _muon, SGDSpec: _sgd},
)
"""Factories of torch optimizers by name, which together update every parameter.
Arguments: named parameters by role, dtype of matmuls, and learning-rate scales by role for optimizers with updates
independent of the gradient's scale, such as AdamW and Lion; see `parameter_groups`."""
