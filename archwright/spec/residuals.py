"""Residual wiring: how branches join the stream that runs through the layers."""

from typing import ClassVar, Literal

from archwright.spec.choice import Choice, Probability


class Residual(Choice):
    """The axis of residual wirings, each stated for one branch f; a layer applies it per branch."""

    axis: ClassVar[str] = "residual"
    final_norm: ClassVar[bool]
    """Whether the stream leaves the layers without a norm, so that one must follow."""
    dropout: Probability = 0.0
    """Share of each branch's output dropped in training."""


class PostNorm(Residual):
    """x = norm(x + f(x)) (Vaswani et al., 2017)."""

    kind: Literal["post"] = "post"
    final_norm: ClassVar[bool] = False


class PreNorm(Residual):
    """x = x + f(norm(x)) (Xiong et al., 2020)."""

    kind: Literal["pre"] = "pre"
    final_norm: ClassVar[bool] = True


class SandwichNorm(Residual):
    """x = x + norm_out(f(norm(x))) (Ding et al., 2021; Gemma 2)."""

    kind: Literal["sandwich"] = "sandwich"
    final_norm: ClassVar[bool] = True
