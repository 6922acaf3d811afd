"""Feed-forward: how a token thinks by itself."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoInt, Choice, Probability, Switches


class FeedForwardBias(Switches):
    """Which projections carry a bias; `bias = true` or `false` sets all."""

    up: bool = False
    down: bool = False


class FeedForward(Choice):
    """The axis of feed-forward branches."""

    axis: ClassVar[str] = "feedforward"


class NoFeedForward(FeedForward):
    """No feed-forward branch: the layer is attention alone."""

    kind: Literal["none"] = "none"


class Hidden(FeedForward):
    """What every feed-forward with a hidden layer has."""

    ratio: ClassVar[float]
    """Hidden width over model width where hidden_dim is auto."""
    gated: ClassVar[bool]
    hidden_dim: AutoInt = "auto"
    """Width of the hidden layer; auto: 4 dim, or 8/3 dim where gated, rounded up to 64."""
    bias: FeedForwardBias = Field(default_factory=FeedForwardBias, validate_default=True)
    """Biases of the projections (`up` covers the gate)."""
    dropout: Probability = 0.0
    """Share of hidden values dropped in training."""


class Plain(Hidden):
    """down(f(up(x))): two projections."""

    ratio: ClassVar[float] = 4.0
    gated: ClassVar[bool] = False


class Gated(Hidden):
    """down(f(gate(x)) * up(x)): three projections (Shazeer, 2020)."""

    ratio: ClassVar[float] = 8 / 3
    gated: ClassVar[bool] = True


class ReLU(Plain):
    """max(0, x) (Vaswani et al., 2017)."""

    kind: Literal["relu"] = "relu"


class GELU(Plain):
    """x Phi(x), exact or in the tanh approximation of GPT-2 (Hendrycks and Gimpel, 2016)."""

    kind: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"
    """Exact error function, or its tanh approximation."""


class SiLU(Plain):
    """x sigmoid(x), also called swish (Elfwing et al., 2017)."""

    kind: Literal["silu"] = "silu"


class SquaredReLU(Plain):
    """max(0, x)^2 (So et al., 2021)."""

    kind: Literal["squared_relu"] = "squared_relu"


class SwiGLU(Gated):
    """silu(gate) * up (Shazeer, 2020)."""

    kind: Literal["swiglu"] = "swiglu"


class GeGLU(Gated):
    """gelu(gate) * up (Shazeer, 2020)."""

    kind: Literal["geglu"] = "geglu"
    approximate: Literal["none", "tanh"] = "none"
    """Exact error function, or its tanh approximation."""


class ReGLU(Gated):
    """relu(gate) * up (Shazeer, 2020)."""

    kind: Literal["reglu"] = "reglu"
