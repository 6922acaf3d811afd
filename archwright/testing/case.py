"""Small float64 models for laws, with large weights that make missing terms visible."""

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from archwright.model import build
from archwright.model.model import Decoder, Output
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.testing.law import Broken, NotTried

ROWS = 2
LONGEST = 12
"""Maximum sequence length in tokens; models may limit it further."""
LONG = 2 * 128 + 37
"""Tokens of a long sequence: more than two chunks of any usual size, and a multiple of none."""
FLOAT32 = 1e-5
"""Error of float32 arithmetic, as a share of the spread of the logits."""


@dataclass
class Case:
    """A model spec with the seed of all random numbers in its tests."""

    spec: ModelSpec
    seed: int = 0
    longest: int = LONGEST
    rows: int = ROWS

    @cached_property
    def dice(self) -> random.Random:
        return random.Random(self.seed)

    @cached_property
    def model(self) -> Decoder:
        """Float64 model with large weights, which make missing terms visible."""
        return self.enlarged().use_kernel("eager")

    def built(self, device: str = "cpu") -> Decoder:
        """Return the model at initialization."""
        return build(self.spec, seed=self.seed, device=device)

    def enlarged(self, size: float | None = None) -> Decoder:
        """Build the model with large weights; the default size is smaller if a layer has no norm."""
        bare = any(
            layer.norm.is_none or dict(layer.residual).get("skip_norm", "none") != "none"
            for layer in self.spec.layers_by_kind.values()
        )
        return enlarged(self.built(), self.seed, size or (0.5 if bare else 1.5))

    @property
    def length(self) -> int:
        """Sequence length: the context length, at most `longest`."""
        return min(self.spec.context_length, self.longest)

    @cached_property
    def long(self) -> "Case":
        """Case with one layer and one long sequence.

        Raises:
            NotTried: The model does not support long sequences.
        """
        try:
            spec = self.spec.override("num_layers=1", f"context_length={LONG}")
        except UserError as why:
            raise NotTried("; ".join(why.lines)) from why
        return Case(spec, self.seed, LONG, rows=1)

    def tokens(self, rows: int | None = None, length: int | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (rows or self.rows, self.length if length is None else length)
        return torch.randint(int(self.spec.resolved().vocab_size), shape, generator=generator)

    def read(self, model: Decoder, tokens: Tensor, **inputs: Any) -> Output:
        """Run a model on tokens. An encoder receives the same source in every call."""
        source = self.tokens().flip(-1)[: len(tokens)].to(tokens.device)
        sequences = (tokens,) if self.spec.encoder.is_none else (source, tokens)
        out: Output = model(*sequences, **inputs)
        return out

    def logits(self, model: Decoder, tokens: Tensor, **inputs: Any) -> Tensor:
        """Return the logits of tokens."""
        return self.read(model, tokens, **inputs).logits

    @property
    def chooses_keys(self) -> bool:
        """True if a mixer selects keys by their values, in addition to the mask."""
        layers = self.spec.layers_by_kind.values()
        return any(mixer.chooses_keys for layer in layers for mixer in layer.mixers.values())

    @property
    def takes(self) -> frozenset[str]:
        """Names of the batch inputs, other than tokens, that all mixers support."""
        layers = self.spec.layers_by_kind.values()
        mixers = [m for layer in layers for m in layer.mixers.values() if not m.is_none]
        return frozenset.intersection(*(m.takes for m in mixers)) if mixers else frozenset()

    @property
    def causal(self) -> bool:
        """True if all mixers and masks are declared causal."""
        layers = self.spec.layers_by_kind.values()
        mixers = [m for layer in layers for m in layer.mixers.values()]
        masks = [values["mask"] for m in mixers if "mask" in (values := dict(m))]
        hidden = all(mask.causal and not mask.shows_future for mask in masks)
        return hidden and all(mixer.causal for mixer in mixers)


def enlarged(model: Decoder, seed: int, size: float) -> Decoder:
    """Draw matrices from N(0, size^2 / fan_in), and add 0.3 N(0, 1) to vectors, in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(size * noise * parameter.shape[-1] ** -0.5)
    return model


def spread(logits: Tensor) -> float:
    """Return the standard deviation of logits, the unit of errors; at least 1e-3."""
    return max(logits.double().std().item(), 1e-3) if logits.numel() > 1 else 1.0


def close(actual: Tensor, expected: Tensor, tolerance: float, what: str, then: str = "") -> None:
    """Raise `Broken` if logits differ by more than `tolerance` times their spread; `then` is the remedy."""
    error = (actual.double() - expected.double()).abs().max().item() if actual.numel() else 0.0
    if error <= tolerance * spread(expected):
        return
    if error <= FLOAT32 * spread(expected):
        then = (
            "that is float32's error, in a float64 model: leave float64 as it is, as in x if x.dtype == torch.float64 "
            "else x.float()"
        )
    raise Broken(f"{what}: off by {error:.3g}{f'; {then}' if then else ''}")
