"""Initial values."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoFloat, Choice


class Init(Choice):
    """The axis of initialisations. Norm weights start at 1 and biases at 0 in all of them."""

    axis: ClassVar[str] = "init"


class Glorot(Init):
    """Matrices: normal, variance 2 / (d_in + d_out), cut at 3 sigma (Glorot and Bengio, 2010)."""

    kind: Literal["glorot"] = "glorot"
    embedding_std: AutoFloat = "auto"
    """Standard deviation of embeddings, cut at 3 sigma; auto: 1, or dim^-0.5 with a tied head."""


class GPT2(Init):
    """Matrices and embeddings: normal with one deviation; what ends a branch is divided by
    sqrt(2 num_layers) (Radford et al., 2019, section 2.3)."""

    kind: Literal["gpt2"] = "gpt2"
    std: float = Field(0.02, gt=0)
    """Standard deviation of matrices and of the embedding."""
