"""Initial values. Every tensor comes from a generator keyed by (seed, parameter name), so that it
does not depend on what else a model has, and models that differ in one choice share all others."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from archwright.parts.linear import Embedding, Linear
from archwright.spec import init as spec


class Glorot:
    """Matrices N(0, 2 / (d_in + d_out)), embeddings N(0, embedding_std^2), both cut at 3 sigma.

    Glorot and Bengio, 2010, eq. 16, with a truncated normal.
    """

    def __init__(self, spec: spec.Glorot, num_layers: int) -> None:
        assert spec.embedding_std != "auto"
        self.embedding_std = spec.embedding_std

    def draw(self, module: Linear | Embedding, out: Tensor, generator: torch.Generator) -> None:
        embeds = isinstance(module, Embedding)
        std = self.embedding_std if embeds else (2.0 / sum(out.shape)) ** 0.5
        nn.init.trunc_normal_(out, 0.0, std, -3 * std, 3 * std, generator=generator)


class GPT2:
    """Matrices and embeddings N(0, std^2); maps that end a branch divided by sqrt(2 num_layers).

    Radford et al., 2019, Language Models are Unsupervised Multitask Learners, section 2.3.
    """

    def __init__(self, spec: spec.GPT2, num_layers: int) -> None:
        self.std, self.num_layers = spec.std, num_layers

    def draw(self, module: Linear | Embedding, out: Tensor, generator: torch.Generator) -> None:
        ends_branch = isinstance(module, Linear) and module.ends_branch
        std = self.std * (2 * self.num_layers) ** -0.5 if ends_branch else self.std
        nn.init.normal_(out, 0.0, std, generator=generator)


INITS: dict[type[spec.Init], Any] = {spec.Glorot: Glorot, spec.GPT2: GPT2}


@torch.no_grad()
def initialise(model: nn.Module, init: Any, seed: int) -> None:
    """Give every tensor its initial value: weights from `init`, others as `reset_parameters` says.

    Raises:
        TypeError: a module with parameters or buffers and no `reset_parameters`.
    """
    done: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, (Linear, Embedding)):
            _initialise_weights(module, path, init, seed, done)
        elif any(True for _ in (*module.parameters(False), *module.buffers(False))):
            _reset(module, path, seed)


def _reset(module: nn.Module, path: str, seed: int) -> None:
    """Let a module set its own tensors; what it draws is keyed by its path, too."""
    reset: Callable[[], None] | None = getattr(module, "reset_parameters", None)
    if reset is None:
        raise TypeError(
            f"{type(module).__name__} at {path} has tensors; give it a reset_parameters() method"
        )
    on_gpu = [p.device for p in module.parameters(recurse=False) if p.is_cuda]
    with torch.random.fork_rng(devices=on_gpu[:1]):
        torch.manual_seed(keyed_generator(seed, path).initial_seed())
        reset()


def _initialise_weights(
    module: Linear | Embedding, path: str, init: Any, seed: int, done: set[int]
) -> None:
    if id(module.weight) not in done:  # a tied table is the embedding's
        done.add(id(module.weight))
        drawn = torch.empty(module.weight.shape)
        init.draw(module, drawn, keyed_generator(seed, f"{path}.weight"))
        module.weight.copy_(drawn)
    if isinstance(module, Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def keyed_generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator that depends on (seed, name) alone."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
