"""Initial values of parameters and buffers.

Every tensor has its own generator, keyed by (seed, parameter name). Models that differ in one choice therefore start
from the same values in all tensors that they share.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from archwright.parts.linear import Embedding, GroupedLinear, Linear
from archwright.parts.registry import Registry
from archwright.spec import init as spec
from archwright.spec.errors import UserError

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
"""Pattern of the layer number in a parameter's path, counted from 0."""


class Init(ABC):
    """Base of initialisations: deviations of weights, learning-rate multipliers and a divisor of logits."""

    lr_scales: Mapping[str, float] = MappingProxyType({})
    """Multipliers of AdamW's learning rate by parameter role (default 1)."""
    divisor: float
    """Divisor of the logits, from the spec."""

    def __init__(self, spec: Any, num_layers: int, dim: int) -> None:
        open_still = [name for name, value in spec.model_dump().items() if value == "auto"]
        if open_still:
            raise UserError(
                f'init.{open_still[0]}: found "auto", which follows from the whole model; give a number, or take '
                "it from a resolved spec: spec.resolved()"
            )
        self.spec, self.num_layers, self.dim = spec, num_layers, dim
        self.divisor = spec.logit_divisor(dim)

    @abstractmethod
    def std(self, module: Linear | Embedding) -> float:
        """Return the standard deviation of a weight, before `branch_end`."""

    def draw(
        self, module: Linear | Embedding, path: str, out: Tensor, generator: torch.Generator
    ) -> None:
        """Fill `out` with the initial weight of the module at `path`."""
        std = self.std(module) * self.branch_end(module, path)
        nn.init.normal_(out, 0.0, std, generator=generator)

    def branch_end(self, module: Linear | Embedding, path: str) -> float:
        """Return the factor of the standard deviation: 1 unless the map is a residual output."""
        if not (isinstance(module, Linear) and module.is_residual_output):
            return 1.0
        if self.spec.residual_output_init == "layer":
            # After layer l, counted from 0, the residual stream is a sum of 2 (l + 1) branches.
            layer = LAYER.search(path)
            return (2 * (int(layer[1]) + 1)) ** -0.5 if layer else 1.0
        factors = {"alike": 1.0, "depth": (2 * self.num_layers) ** -0.5, "zero": 0.0}
        return float(factors[self.spec.residual_output_init])


class Glorot(Init):
    """Matrices N(0, 2 / (d_in + d_out)), embeddings N(0, embedding_std^2), both truncated at 3 sigma.

    Glorot and Bengio, 2010, eq. 16, with a truncated normal.
    """

    def std(self, module: Linear | Embedding) -> float:
        embeds = isinstance(module, Embedding)
        return float(
            self.spec.embedding_std if embeds else (2 / sum(module.weight.shape[-2:])) ** 0.5
        )

    def draw(
        self, module: Linear | Embedding, path: str, out: Tensor, generator: torch.Generator
    ) -> None:
        std = self.std(module) * self.branch_end(module, path)
        if std == 0:  # trunc_normal_ divides by std
            nn.init.zeros_(out)
        else:
            nn.init.trunc_normal_(out, 0.0, std, -3 * std, 3 * std, generator=generator)


class GPT2(Init):
    """Matrices N(0, std^2), embeddings N(0, embedding_std^2); residual outputs are divided by sqrt(2 num_layers).

    Radford et al., 2019, Language Models are Unsupervised Multitask Learners, section 2.3.
    """

    def std(self, module: Linear | Embedding) -> float:
        embeds = isinstance(module, Embedding)
        return float(self.spec.embedding_std if embeds else self.spec.std)


class FanIn(Init):
    """Matrices N(0, 1 / d_in), token embeddings N(0, embedding_std^2), other tables N(0, 1 / dim).

    Query matrices are divided by sqrt(head_dim) times the scale of attention scores.
    Raffel et al., 2019, T5, published code: T5 does not scale scores, and draws smaller queries instead.
    """

    def std(self, module: Linear | Embedding) -> float:
        if isinstance(module, Embedding):
            return float(self.spec.embedding_std if module.holds_tokens else self.dim**-0.5)
        return float(module.weight.shape[-1] ** -0.5 / module.score_gain)


class MuP(Init):
    """Matrices N(0, std^2 / m), embeddings and head N(0, std^2), with m = dim / base_dim.

    The learning rate of matrices is divided by m for AdamW and by sqrt(m) for Muon; logits are divided by m. A step
    then changes every activation by the same amount at any width.
    Yang et al., 2022, Tensor Programs V, table 8.
    """

    def __init__(self, spec: spec.MuP, num_layers: int, dim: int) -> None:
        super().__init__(spec, num_layers, dim)
        self.lr_scales = {"matrix": 1 / self.divisor}

    def std(self, module: Linear | Embedding) -> float:
        inside = isinstance(module, Linear) and not module.is_lm_head
        return float(self.spec.std * (self.divisor**-0.5 if inside else 1.0))


INITS = Registry(
    spec.Init,
    "(spec, num_layers, dim)",
    Init,
    {spec.Glorot: Glorot, spec.GPT2: GPT2, spec.FanIn: FanIn, spec.MuP: MuP},
)
"""Subclasses of `Init`, by the class of their spec."""


@runtime_checkable
class Resettable(Protocol):
    """Module that initialises its tensors, as modules of torch do."""

    def reset_parameters(self) -> None:
        """Set parameters and buffers to their initial values."""


@torch.no_grad()
def initialise(model: nn.Module, init: Init, seed: int) -> None:
    """Initialise all parameters and buffers of a model.

    Weights of `Linear` and `Embedding` come from `init`, biases are 0, other tensors come from `reset_parameters`.

    Raises:
        TypeError: a module has tensors, but no `reset_parameters`.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, draw in draws(model, init, seed):
        tensors[name].copy_(draw())


def draws(
    model: nn.Module, init: Init, seed: int, *, device: torch.device | None = None
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield (name, function) for each tensor; the function draws its initial value.

    The function reads only shapes of the model, which may be on the meta device.

    Args:
        device: device for calls of `reset_parameters` (default: the device of the module's tensors).

    Raises:
        TypeError: as in `initialise`, when the function is called.
    """
    names = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
    done: set[str] = set()
    for path, module in model.named_modules():
        parameters = dict(module.named_parameters("", False))
        tensors = {**parameters, **dict(module.named_buffers("", False))}
        named = {local: names[id(tensor)] for local, tensor in tensors.items()}
        if isinstance(module, (Linear, Embedding)):
            weight = names[id(module.weight)]
            if weight not in done:  # a head may share the table of the embedding
                done.add(weight)
                yield weight, partial(_weight, module, path, init, seed)
            if "bias" in named:
                yield named["bias"], partial(torch.zeros, tensors["bias"].shape)
        else:
            # One call of reset_parameters serves all tensors of the module.
            values = cache(partial(_own_values, module, tensors, path, seed, device))
            yield from ((name, partial(_one_of, values, local)) for local, name in named.items())


def _one_of(values: Callable[[], Mapping[str, Tensor]], name: str) -> Tensor:
    return values()[name]


@torch.no_grad()
def reset_buffers(model: nn.Module) -> None:
    """Reset buffers, which follow from the spec, if parameters come from a checkpoint."""
    for path, module in model.named_modules():
        if buffers := dict(module.named_buffers("", False)):
            tensors = {**dict(module.named_parameters("", False)), **buffers}
            for name, value in _own_values(module, tensors, path, 0).items():
                tensors[name].copy_(value)


@torch.no_grad()
def _own_values(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    path: str,
    seed: int,
    device: torch.device | None = None,
) -> dict[str, Tensor]:
    """Return the values that `reset_parameters` gives `tensors`, with random numbers keyed by `path`."""
    if not isinstance(module, Resettable):
        raise TypeError(
            f"{type(module).__name__} at {path} has tensors; give it a reset_parameters() method"
        )
    made = {name: torch.empty_like(tensor, device=device) for name, tensor in tensors.items()}
    on_gpu = [tensor.device for tensor in made.values() if tensor.is_cuda]
    try:
        # reset_parameters writes to attributes, so empty copies replace the tensors during the call.
        for name, tensor in made.items():
            is_parameter = isinstance(tensors[name], nn.Parameter)
            setattr(module, name, nn.Parameter(tensor, False) if is_parameter else tensor)
        with torch.random.fork_rng(devices=on_gpu[:1]):
            torch.manual_seed(keyed_generator(seed, path).initial_seed())
            module.reset_parameters()
        return {name: getattr(module, name).detach() for name in tensors}
    finally:
        for name, tensor in tensors.items():
            setattr(module, name, tensor)


def _weight(module: Linear | Embedding, path: str, init: Init, seed: int) -> Tensor:
    """Return the initial weight of a `Linear` or `Embedding`."""
    drawn = torch.empty(module.weight.shape)
    # A generator per matrix: the first experts do not depend on the number of experts.
    if isinstance(module, GroupedLinear):
        for i, matrix in enumerate(drawn):
            init.draw(module, path, matrix, keyed_generator(seed, f"{path}.{i}.weight"))
    else:
        init.draw(module, path, drawn, keyed_generator(seed, f"{path}.weight"))
    return drawn.mul_(module.init_gain) if isinstance(module, Linear) else drawn


def keyed_generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator with a seed derived from (seed, name)."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    # 63 bits: a non-negative int64
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
