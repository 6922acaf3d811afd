"""Initial values."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoFloat, Choice, Width


class Init(Choice):
    """The axis of initial values. Norms start as if they had no weight, and biases at 0, in all of
    them."""

    axis: ClassVar[str] = "init"

    def auto_embedding_std(self, embedding_dim: int, *, tied: bool) -> float:
        """Return the standard deviation of embeddings where that is left open."""
        return embedding_dim**-0.5 if tied else 1.0

    def logit_divisor(self, dim: int) -> float:
        """Return the divisor of logits at this width, in addition to the divisor of the head."""
        return 1.0


class Glorot(Init):
    """Matrices: normal, variance 2 / (d_in + d_out), cut at 3 sigma (Glorot and Bengio, 2010)."""

    kind: Literal["glorot"] = "glorot"
    embedding_std: AutoFloat = Field("auto", examples=[0.02])
    """Standard deviation of embeddings, cut at 3 sigma; auto: 1, or dim^-0.5 with a tied head."""
    residual_output_init: Literal["alike", "depth", "layer", "zero"] = "alike"
    """Maps that end a branch: drawn as all others, divided by sqrt(2 num_layers) or by sqrt(2 layer) with layers
    counted from 1, or zero, so that every layer begins as the identity."""


class GPT2(Init):
    """Matrices and embeddings: normal with one deviation; what ends a branch is divided by
    sqrt(2 num_layers) (Radford et al., 2019, section 2.3)."""

    kind: Literal["gpt2"] = "gpt2"
    std: float = Field(0.02, gt=0)
    """Standard deviation of matrices and of the embedding."""
    embedding_std: AutoFloat = Field("auto", examples=[0.02])
    """Standard deviation of embeddings; auto: std. A norm after a small one moves it fast
    (RWKV's SmallInit takes 1e-4)."""
    residual_output_init: Literal["alike", "depth", "layer", "zero"] = "depth"
    """Maps that end a branch: drawn as all others, divided by sqrt(2 num_layers) or by sqrt(2 layer) with layers
    counted from 1, or zero, so that every layer begins as the identity."""

    def auto_embedding_std(self, embedding_dim: int, *, tied: bool) -> float:
        return self.std


class FanIn(Init):
    """Matrices: normal, variance 1 / d_in; those of queries are smaller where scores have no scale, so that these
    begin as large as with head_dim^-0.5 (Raffel et al., 2019, T5: published code)."""

    kind: Literal["fan_in"] = "fan_in"
    embedding_std: AutoFloat = Field("auto", examples=[0.02])
    """Standard deviation of the embedding; auto: 1."""
    residual_output_init: Literal["alike", "depth", "layer", "zero"] = "alike"
    """Maps that end a branch: drawn as all others, divided by sqrt(2 num_layers) or by sqrt(2 layer) with layers
    counted from 1, or zero, so that every layer begins as the identity."""

    def auto_embedding_std(self, embedding_dim: int, *, tied: bool) -> float:
        return 1.0


class MuP(Init):
    """Maximal update parametrisation, by which the best learning rate stays as a model grows wider
    (Yang et al., 2022, table 8). With m = dim / base_dim, matrices have deviation std / sqrt(m), 1 / m
    of AdamW's rate and 1 / sqrt(m) of Muon's, and logits are divided by m. Where heads grow wider,
    attention.scale.kind=inverse belongs to it."""

    kind: Literal["mup"] = "mup"
    base_dim: Width = Field(256, examples=[128])
    """The width at which nothing changes, where rates were tuned."""
    std: float = Field(0.02, gt=0)
    """Standard deviation of matrices at base_dim, and of the embedding and head at any."""
    residual_output_init: Literal["alike", "depth", "layer", "zero"] = "depth"
    """Maps that end a branch: drawn as all others, divided by sqrt(2 num_layers) or by sqrt(2 layer) with layers
    counted from 1, or zero, so that every layer begins as the identity."""

    def logit_divisor(self, dim: int) -> float:
        return dim / self.base_dim
