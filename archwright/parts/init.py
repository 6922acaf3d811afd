"""Initial values. Every tensor comes from a generator keyed by (seed, parameter name), so that it
does not depend on what else a model has, and models that differ in one choice share all others."""

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
"""Where a parameter's path names its layer, counted from 0."""


class Init(ABC):
    """Base of all initialisations: the deviations that weights are drawn with, and, for widths to share
    their lr_scales, factors of AdamW's rates and a divisor of logits."""

    lr_scales: Mapping[str, float] = MappingProxyType({})
    """Factor of AdamW's learning rate, for roles of parameters that have another than 1."""
    divisor: float
    """Divisor of the logits, which its spec says."""

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
        """Return the standard deviation of a weight, branch ends aside."""

    def draw(
        self, module: Linear | Embedding, path: str, out: Tensor, generator: torch.Generator
    ) -> None:
        """Fill `out` with the weight of the module at `path`."""
        std = self.std(module) * self.branch_end(module, path)
        nn.init.normal_(out, 0.0, std, generator=generator)

    def branch_end(self, module: Linear | Embedding, path: str) -> float:
        """Return what a deviation is multiplied by where a map ends a branch."""
        if not (isinstance(module, Linear) and module.is_residual_output):
            return 1.0
        if self.spec.residual_output_init == "layer":
            layer = LAYER.search(path)
            return (2 * (int(layer[1]) + 1)) ** -0.5 if layer else 1.0
        factors = {"alike": 1.0, "depth": (2 * self.num_layers) ** -0.5, "zero": 0.0}
        return float(factors[self.spec.residual_output_init])


class Glorot(Init):
    """Matrices N(0, 2 / (d_in + d_out)), embeddings N(0, embedding_std^2), both cut at 3 sigma.

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
        if std == 0:  # which cannot be cut
            nn.init.zeros_(out)
        else:
            nn.init.trunc_normal_(out, 0.0, std, -3 * std, 3 * std, generator=generator)


class GPT2(Init):
    """Matrices N(0, std^2), embeddings N(0, embedding_std^2); maps that end a branch divided by
    sqrt(2 num_layers).

    Radford et al., 2019, Language Models are Unsupervised Multitask Learners, section 2.3.
    """

    def std(self, module: Linear | Embedding) -> float:
        embeds = isinstance(module, Embedding)
        return float(self.spec.embedding_std if embeds else self.spec.std)


class FanIn(Init):
    """Matrices N(0, 1 / d_in), those of queries divided by sqrt(head_dim) times the scale of their scores; embeddings
    of tokens N(0, embedding_std^2), other tables N(0, 1 / dim).

    Raffel et al., 2019, T5, in its published code: it has no scale of scores, so its queries are drawn smaller.
    """

    def std(self, module: Linear | Embedding) -> float:
        if isinstance(module, Embedding):
            return float(self.spec.embedding_std if module.holds_tokens else self.dim**-0.5)
        return float(module.weight.shape[-1] ** -0.5 / module.score_gain)


class MuP(Init):
    """Matrices N(0, std^2 / m), embeddings and head N(0, std^2), m = dim / base_dim; AdamW's rate of
    matrices is divided by m, Muon's by sqrt(m), and the logits by m.

    Then every activation moves by as much in a step as at base_dim, whatever the width.
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
"""Below `Init`."""


@runtime_checkable
class Resettable(Protocol):
    """A module that sets its own tensors, as torch's modules do."""

    def reset_parameters(self) -> None:
        """Give parameters and buffers their initial values."""


@torch.no_grad()
def initialise(model: nn.Module, init: Init, seed: int) -> None:
    """Give every tensor its initial value: weights from `init`, others as `reset_parameters` says.

    Raises:
        TypeError: a module with parameters or buffers and no `reset_parameters`.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, draw in draws(model, init, seed):
        tensors[name].copy_(draw())


def draws(
    model: nn.Module, init: Init, seed: int, *, device: torch.device | None = None
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield names of the tensors of a model, of which only shapes count, and for each what draws its initial value.

    Args:
        device: of a model on the meta device, where modules that set their own tensors do so; by default, where these
            are.

    Raises:
        TypeError: as `initialise`, where the value is drawn.
    """
    known = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
    done: set[str] = set()
    for path, module in model.named_modules():
        own = {**dict(module.named_parameters("", False)), **dict(module.named_buffers("", False))}
        named = {local: known[id(tensor)] for local, tensor in own.items()}
        if isinstance(module, (Linear, Embedding)):
            weight = known[id(module.weight)]
            if weight not in done:  # a tied table is the embedding's
                done.add(weight)
                yield weight, partial(_weight, module, path, init, seed)
            if "bias" in named:
                yield named["bias"], partial(torch.zeros, own["bias"].shape)
        else:
            values = cache(partial(_own_values, module, own, path, seed, device))
            yield from ((name, partial(_one_of, values, local)) for local, name in named.items())


def _one_of(values: Callable[[], Mapping[str, Tensor]], name: str) -> Tensor:
    return values()[name]


@torch.no_grad()
def reset_buffers(model: nn.Module) -> None:
    """Give buffers their values where weights come from elsewhere: tables that follow from the spec."""
    for path, module in model.named_modules():
        if buffers := dict(module.named_buffers("", False)):
            own = {**dict(module.named_parameters("", False)), **buffers}
            for name, value in _own_values(module, own, path, 0).items():
                own[name].copy_(value)


@torch.no_grad()
def _own_values(
    module: nn.Module,
    own: Mapping[str, Tensor],
    path: str,
    seed: int,
    device: torch.device | None = None,
) -> dict[str, Tensor]:
    """Return what a module sets its `own` tensors to; what it draws is keyed by its path, too."""
    if not isinstance(module, Resettable):
        raise TypeError(
            f"{type(module).__name__} at {path} has tensors; give it a reset_parameters() method"
        )
    made = {name: torch.empty_like(tensor, device=device) for name, tensor in own.items()}
    on_gpu = [tensor.device for tensor in made.values() if tensor.is_cuda]
    try:
        for name, tensor in made.items():
            is_parameter = isinstance(own[name], nn.Parameter)
            setattr(module, name, nn.Parameter(tensor, False) if is_parameter else tensor)
        with torch.random.fork_rng(devices=on_gpu[:1]):
            torch.manual_seed(keyed_generator(seed, path).initial_seed())
            module.reset_parameters()
        return {name: getattr(module, name).detach() for name in own}
    finally:
        for name, tensor in own.items():
            setattr(module, name, tensor)


def _weight(module: Linear | Embedding, path: str, init: Init, seed: int) -> Tensor:
    """Return the initial weight of a map or a table."""
    drawn = torch.empty(module.weight.shape)
    if isinstance(module, GroupedLinear):  # more of them leave the first ones as they are
        for i, matrix in enumerate(drawn):
            init.draw(module, path, matrix, keyed_generator(seed, f"{path}.{i}.weight"))
    else:
        init.draw(module, path, drawn, keyed_generator(seed, f"{path}.weight"))
    return drawn.mul_(module.init_gain) if isinstance(module, Linear) else drawn


def keyed_generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator that depends on (seed, name) alone."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
