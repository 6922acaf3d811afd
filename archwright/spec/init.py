"""Initial values of parameters."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoFloat, Choice, Width


class Init(Choice):
    """The axis of initial values. For all kinds, norms start as if without weight, and biases at 0."""

    axis: ClassVar[str] = "init"

    def auto_embedding_std(self, embedding_dim: int, *, tied: bool) -> float:
        """Return the standard deviation of embeddings for "auto"."""
        return embedding_dim**-0.5 if tied else 1.0

    def logit_divisor(self, dim: int) -> float:
        """Return the divisor of logits at this width, in addition to the divisor of the head."""
        return 1.0


class Glorot(Init):
    """Matrices: normal, variance 2 / (d_in + d_out), truncated at 3 sigma (Glorot and Bengio, 2010)."""

    kind: Literal["glorot"] = "glorot"
    embedding_std: AutoFloat = Field("auto", examples=[0.02])
    """Standard deviation of embeddings, truncated at 3 sigma; auto: 1, or dim^-0.5 with a tied head."""
    residual_output_init: Literal["alike", "depth", "layer", "zero"] = "alike"
    """Output projections of branches. alike: like other matrices; depth: divided by sqrt(2 num_layers); layer: divided
    by sqrt(2 layer), with layers from 1; zero: every layer is initially the identity."""


class GPT2(Init):
    """Matrices and embeddings: normal with one standard deviation; output projections of branches are divided by sqrt(2
    num_layers) (Radford et al., 2019, section 2.3)."""

    kind: Literal["gpt2"] = "gpt2"
    std: float = Field(0.02, gt=0)
    """Standard deviation of matrices and of the embedding."""
    embedding_std: AutoFloat = Field("auto", examples=[0.02])
    """Standard deviation of embeddings; auto: std. With a small one and a norm after it, embeddings change fast (RWKV's
    SmallInit has 1e-4)."""
    residual_output_init: Literal["alike", "depth", "layer", "zero"] = "depth"
    """Output projections of branches. alike: like other matrices; depth: divided by sqrt(2 num_layers); layer: divided
    by sqrt(2 layer), with layers from 1; zero: every layer is initially the identity."""

    def auto_embedding_std(self, embedding_dim: int, *, tied: bool) -> float:
        return self.std


class FanIn(Init):
    """Matrices: normal, variance 1 / d_in. Without a score scale, query projections are smaller, so that initial scores
    are as with head_dim^-0.5 (Raffel et al., 2019, T5: published code)."""

    kind: Literal["fan_in"] = "fan_in"
    embedding_std: AutoFloat = Field("auto", examples=[0.02])
    """Standard deviation of the embedding; auto: 1."""
    residual_output_init: Literal["alike", "depth", "layer", "zero"] = "alike"
    """Output projections of branches. alike: like other matrices; depth: divided by sqrt(2 num_layers); layer: divided
    by sqrt(2 layer), with layers from 1; zero: every layer is initially the identity."""

    def auto_embedding_std(self, embedding_dim: int, *, tied: bool) -> float:
        return 1.0


class MuP(Init):
    """Maximal update parametrisation, with one best learning rate for all widths (Yang et al., 2022, table 8). With m =
    dim / base_dim, matrices have deviation std / sqrt(m), 1 / m of AdamW's learning rate and 1 / sqrt(m) of Muon's, and
    logits are divided by m. If heads grow wider, use attention.scale.kind=inverse."""

    kind: Literal["mup"] = "mup"
    base_dim: Width = Field(256, examples=[128])
    """Width at which learning rates were tuned; muP changes nothing there."""
    std: float = Field(0.02, gt=0)
    """Standard deviation of matrices at base_dim, and of embedding and head at any width."""
    residual_output_init: Literal["alike", "depth", "layer", "zero"] = "depth"
    """Output projections of branches. alike: like other matrices; depth: divided by sqrt(2 num_layers); layer: divided
    by sqrt(2 layer), with layers from 1; zero: every layer is initially the identity."""

    def logit_divisor(self, dim: int) -> float:
        return dim / self.base_dim
