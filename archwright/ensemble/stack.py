"""Several models of one shape as one: their weights lie side by side, and one pass computes all of them."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.model.language_model import LanguageModel
from archwright.parts.branch import Branch
from archwright.parts.embeddings import TokenEmbedding
from archwright.parts.linear import Linear, TokenTable
from archwright.parts.norms import DynamicTanh, LayerNorm, RMSNorm, upcast
from archwright.parts.weighted_sum import WeightedSum


class Stack(nn.Module):
    """The vectors that K models of one shape give their heads, from one pass over all rows.

    What has no parameters, attention among it, sees the models' texts as rows of one batch. Maps, norms and
    the embedding have the parameters of all models as one tensor [K, ...], and the models keep theirs as
    views into it: what changes one, changes the other. Heads are not stacked: logits are so large that
    more of them at a time are slower.

    Raises:
        ValueError: a model that `why_not_ensembled` names a reason for.
    """

    def __init__(self, models: Sequence[LanguageModel]) -> None:
        super().__init__()
        if why := why_not_ensembled(models[0]):
            raise ValueError(why)
        self.number = len(models)
        self.body = copy.deepcopy(models[0])
        self.body.set_submodule("head", nn.Identity())
        for path, module in list(self.body.named_modules()):
            if type(module) in STACKED:
                self._replace(path, module, models)

    def forward(
        self,
        tokens: Int[Tensor, "rows length"],
        **inputs: Any,
    ) -> Float[Tensor, "rows length dim"]:
        """Return what the heads read; the rows are those of the first model, then of the second, ..."""
        return self.body.hidden(tokens, **inputs)

    def by_name(self) -> dict[str, nn.Parameter]:
        """Return the stacked parameters [K, ...] by the name that each model has for its own."""
        return dict(self.body.named_parameters())

    def _replace(self, path: str, module: nn.Module, models: Sequence[LanguageModel]) -> None:
        """Put a stacked module in the place of one, and let each model's parameters be views into it."""
        own = [name for name, _ in module.named_parameters(recurse=False)]
        values = {
            name: torch.stack([model.get_parameter(f"{path}.{name}").data for model in models])
            for name in own
        }
        stacked = STACKED[type(module)](module, self.number)
        for name, value in values.items():
            stacked.register_parameter(name, nn.Parameter(value))
            for model, view in zip(models, value, strict=True):
                model.get_parameter(f"{path}.{name}").data = view
        self.body.set_submodule(path, stacked)


def why_not_ensembled(model: LanguageModel) -> str:
    """Return why models of this shape cannot be computed as one, in a sentence; empty where they can."""
    if model.sequence_head is not None:
        return "sequence_head judges rows as a whole, which a stack of models does not"
    if not model.spec.generator.is_none:
        return "generator proposes tokens, which a stack of models does not"
    for path, module in model.named_modules():
        place = f"{path} ({type(module).__name__})"
        if path.partition(".")[0] == "head":
            continue
        if isinstance(module, Branch) and type(module).after_step is not Branch.after_step:
            return f"{place} follows the load of a whole batch"
        unknown = STACKED.get(type(module)) is None
        if unknown and list(module.parameters(recurse=False)):
            return f"{place} has parameters that are not stacked"
    return ""


class _Stacked(nn.Module):
    """A part with the parameters of `number` models, which are registered when they are known."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)


class _StackedLinear(Linear):
    """y = x W_k^T + b_k for the rows of the k-th model; W and b are registered when they are known."""

    can_join = False

    def __init__(self, one: Linear, number: int) -> None:
        with torch.device("meta"):
            super().__init__(one.d_in, one.d_out, bias=one.bias is not None)
        self.number = number

    def forward(self, x: Float[Tensor, "rows *length d_in"]) -> Float[Tensor, "rows *length d_out"]:
        # [number, rows * length, d_out]
        y = _by_run(x, self.number).flatten(1, -2) @ self.weight.mT
        if self.bias is not None:
            y = y + self.bias[:, None].to(y.dtype)
        # [number * rows, length, d_out]
        return y.view(*x.shape[:-1], -1)


class _StackedTable(_Stacked):
    """x = W_k[token] for the rows of the k-th model."""

    def __init__(self, one: TokenTable | TokenEmbedding, number: int) -> None:
        super().__init__(number)

    def forward(self, index: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length dim"]:
        assert self.weight is not None
        first = torch.arange(self.number, device=index.device) * self.weight.shape[1]
        # Rows of one table [number * vocab, dim], at indices [number * rows, length].
        return F.embedding(
            (_by_run(index, self.number) + first[:, None, None]).flatten(0, 1),
            self.weight.flatten(0, 1),
        )


class _StackedEmbedding(_StackedTable):
    """x = P_k (scale * W_k[token]) + b_k for the rows of the k-th model."""

    def __init__(self, one: TokenEmbedding, number: int) -> None:
        super().__init__(one, number)
        self.scale = one.scale
        self.project_in: nn.Module | None = one.project_in

        self.token_types: nn.Module | None = one.token_types

    def forward(
        self,
        index: Int[Tensor, "rows length"],
        token_type_ids: Int[Tensor, "rows length"] | None = None,
    ) -> Float[Tensor, "rows length dim"]:
        x = super().forward(index)
        if self.scale != 1:
            x = x * torch.tensor(self.scale, dtype=x.dtype, device="cpu")
        if self.project_in is not None:
            x = self.project_in(x)
        if self.token_types is not None:
            types = torch.zeros_like(index) if token_type_ids is None else token_type_ids
            x = x + self.token_types(types).to(x.dtype)
        if self.bias is not None:
            y = _by_run(x, self.number)
            x = (y + _beside(self.bias, y).to(y.dtype)).flatten(0, 1)
        return x


class _StackedNorm(_Stacked):
    """The norm without its weight and bias, and then those of the k-th model for its rows."""

    def __init__(self, one: LayerNorm | RMSNorm, number: int) -> None:
        super().__init__(number)
        bare: dict[str, Any] = {"weight": "none"} | (
            {"bias": False} if one.bias is not None else {}
        )
        self.bare = type(one)(one.spec.model_copy(update=bare), one.dim)  # type: ignore[arg-type]
        self.offset = one.spec.weight == "unit_offset"
        self.scale_in_input_dtype = one.scale_in_input_dtype

    def forward(self, x: Float[Tensor, "rows *length dim"]) -> Float[Tensor, "rows *length dim"]:
        y = _by_run(self.bare(x.to(torch.promote_types(x.dtype, torch.float32))), self.number)
        y = y.to(x.dtype) if self.scale_in_input_dtype else y
        if self.weight is not None:
            weight = 1 + self.weight if self.offset else self.weight
            y = y * _beside(weight, y).to(y.dtype)
        if self.bias is not None:
            y = y + _beside(self.bias, y)
        # [number * rows, length, dim]
        found: Tensor = y.to(x.dtype).flatten(0, 1)
        return found


class _StackedTanh(_Stacked):
    """weight_k * tanh(alpha_k x) + bias_k for the rows of the k-th model."""

    def __init__(self, one: DynamicTanh, number: int) -> None:
        super().__init__(number)
        self.register_parameter("alpha", None)

    def forward(self, x: Float[Tensor, "rows *length dim"]) -> Float[Tensor, "rows *length dim"]:
        y = upcast(_by_run(x, self.number))
        alpha, weight = self.get_parameter("alpha"), self.get_parameter("weight")
        y = torch.tanh(y * _beside(alpha, y)) * _beside(weight, y)
        if self.bias is not None:
            y = y + _beside(self.bias, y)
        # [number * rows, length, dim]
        found: Tensor = y.to(x.dtype).flatten(0, 1)
        return found


class _StackedSum(nn.Module):
    """a_k x + b_k z for the rows of the k-th model; a and b are registered when they are known."""

    def __init__(self, one: WeightedSum, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        y, w = _by_run(x, self.number), _by_run(z.to(x.dtype), self.number)
        a, b = (_beside(self.get_parameter(name), y) for name in ("first", "second"))
        # [number * rows, length, ...]
        found: Tensor = (y * a.to(x.dtype) + w * b.to(x.dtype)).flatten(0, 1)
        return found


def _by_run(x: Tensor, number: int) -> Tensor:
    """View [number * rows, ...] as [number, rows, ...]."""
    # [number, rows, ...]
    found: Tensor = x.unflatten(0, (number, -1))
    return found


def _beside(parameter: Tensor, x: Tensor) -> Tensor:
    """View a parameter [number, *shape] so that it goes with x [number, rows, ..., *shape]."""
    between = x.ndim - parameter.ndim
    # [number, 1, ..., *shape]
    return parameter.view(parameter.shape[0], *[1] * between, *parameter.shape[1:])


STACKED: dict[type[nn.Module], Callable[[Any, int], nn.Module]] = {
    Linear: _StackedLinear,
    TokenTable: _StackedTable,
    TokenEmbedding: _StackedEmbedding,
    LayerNorm: _StackedNorm,
    RMSNorm: _StackedNorm,
    DynamicTanh: _StackedTanh,
    WeightedSum: _StackedSum,
}
"""Stacked parts, made from one of them and the number of models."""
