"""Which optimizer moves which parameter, and which parameters decay."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from archwright.model.language_model import LanguageModel
from archwright.optim.eager import AdamW
from archwright.optim.muon import Muon
from archwright.parts import branch
from archwright.parts.linear import Embedding, GroupedLinear, Linear
from archwright.parts.norms import NORMS
from archwright.parts.registry import Registry
from archwright.spec.errors import UserError, nearest
from archwright.spec.run_spec import AdamW as AdamWSpec
from archwright.spec.run_spec import Muon as MuonSpec
from archwright.spec.run_spec import Optimizer as OptimizerSpec

Role = Literal["embedding", "head"] | branch.Role
Parameters = list[tuple[str, nn.Parameter]]
Optimizers = dict[str, torch.optim.Optimizer]

FUSED = {"cpu", "cuda"}
"""Devices with a fused AdamW in every torch that this package runs on."""


def build_optimizers(
    model: nn.Module, spec: OptimizerSpec, *, precision: torch.dtype = torch.float32
) -> Optimizers:
    """Return the optimizers of all trainable parameters by name: "adamw", and "muon" where chosen.

    `precision` is that of the run's matrix products; Muon computes its own in it. Every parameter
    group keeps its peak rate as "initial_lr", from which `set_learning_rates` works. AdamW's rate is
    multiplied by the `lr_scales` of a language model, by a parameter's role (muP); Muon's by their square root.

    Raises:
        ValueError: a model without trainable parameters.
        UserError: an optimizer without a part, or one that leaves parameters as they are.
    """
    by_role: dict[Role, Parameters] = defaultdict(list)
    role_of = roles(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            by_role[role_of[name]].append((name, parameter))
    if not by_role:
        raise ValueError("the model has no trainable parameters: unfreeze some before training")
    lr_scales = model.lr_scales if isinstance(model, LanguageModel) else {}
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
    """Give every parameter group this share of its peak learning rate."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * share


def roles(model: nn.Module) -> dict[str, Role]:
    """Return the role of each parameter by its name, as in `model.named_parameters()`.

    Roles that a module states in `roles` come first. For the rest:
    embedding: the table of an embedding module, also if a head shares it.
    head: the map to the vocabulary: a module named `head`; without one, the last matrix with the
        shape of the largest embedding. A language model without one shares the table of its embedding.
    kernel: the weight of a convolution. vector: a parameter with fewer than two axes, a weight of a norm or a bias
        of a stack, which may have a row for each head or expert.
    matrix: any other parameter; with more than two axes, a stack of matrices, as in experts.

    Raises:
        UserError: `roles` of a module names no parameter, or an unknown role.
    """
    by_name, stated = dict[str, Role](), _stated(model)
    for name, role in _usual_roles(model).items():
        matrix: Role = "head" if "head" in name.split(".")[-2:-1] else "matrix"
        by_name[name] = stated.get(name, matrix if role in (None, "matrix") else role)
    if "head" not in by_name.values() and not isinstance(model, LanguageModel):
        by_name.update(_head_by_shape(model, by_name))
    return by_name


def without_role(model: nn.Module) -> list[str]:
    """Return the parameters that are matrices only because no module states their role."""
    return [
        n for n, role in _usual_roles(model).items() if role is None and n not in _stated(model)
    ]


def _usual_roles(model: nn.Module) -> dict[str, Role | None]:
    """Return the role that follows from a parameter's module and shape; None if the module is of no known kind."""
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
    """Return the roles that modules state, by full name of the parameter."""
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


def _head_by_shape(model: nn.Module, found: Mapping[str, Role]) -> dict[str, Role]:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    tables = [shapes[name] for name, role in found.items() if role == "embedding"]
    matrices = [name for name, role in found.items() if role == "matrix"]
    if tables and matrices:
        vocabulary = max(tables, key=lambda shape: shape.numel())
        heads = [name for name in matrices if shapes[name] == vocabulary]
        # A head stands at the end; a matrix of that shape elsewhere only looks like one.
        if heads and heads[-1] == matrices[-1]:
            return {heads[-1]: "head"}
    return {}


def parameter_groups(
    by_role: Mapping[Role, Parameters],
    lr: float,
    weight_decay: float,
    lr_scales: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return groups for a torch optimizer that decay whatever multiplies: matrices, head and embedding, as
    GPT-3 and LLaMA are usually reproduced. Biases and gains have a natural size that decay would pull them from."""
    alike: dict[tuple[bool, float], Parameters] = defaultdict(list)
    for role, named in by_role.items():
        alike[role != "vector", lr_scales.get(role, 1.0)] += named
    # A step takes off lr * weight_decay: a share of the weight that no factor of its rate should change.
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


def _muon(
    spec: MuonSpec,
    by_role: Mapping[Role, Parameters],
    precision: torch.dtype,
    lr_scales: Mapping[str, float],
) -> Optimizers:
    """Muon for the matrices inside; AdamW for what is looked up, read out or no matrix.

    An update has the spectral norm lr 0.2 sqrt(max(d_out, d_in)), which grows with sqrt(m), m = dim / base_dim. muP
    keeps it: where AdamW's rate is multiplied by 1 / m, Muon's is by 1 / sqrt(m).
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
    {AdamWSpec: _adamw, MuonSpec: _muon},
)
"""Functions that return torch optimizers by name, which together move every parameter. They get the named parameters
of each role, the dtype of matrix products, and factors of the learning rates of roles, for updates whose size does not
depend on that of the gradient, as AdamW's and Lion's; see `parameter_groups`."""
