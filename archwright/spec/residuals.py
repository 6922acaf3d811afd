"""Residual wiring: connections of branches and the residual stream."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from archwright.spec.choice import (
    AutoFloat,
    Choice,
    ModelSizes,
    Probability,
    ScaleDown,
    Uniform,
    Width,
)

Groups = Mapping[str, Collection[str]]
"""Names of branches, in groups that read the same normed stream."""


class PerBranch(Uniform):
    """A number per branch; a plain number sets all."""

    plain: ClassVar[str] = "number"
    attention: float = Field(1.0, examples=[0.5])
    """Value for the attention branch."""
    recurrence: float | Literal["attention"] = Field("attention", examples=[0.5])
    """Value for the recurrence; "attention": the value for the attention branch."""
    cross_attention: float | Literal["attention"] = Field("attention", examples=[0.5])
    """Value for the cross-attention; "attention": the value for the attention branch."""
    feedforward: float = Field(1.0, examples=[0.5])
    """Value for the feed-forward branch."""

    def __getitem__(self, branch: str) -> float:
        number: float | str = getattr(self, branch)
        return self.attention if isinstance(number, str) else number

    @property
    def given(self) -> dict[str, float]:
        """Values by branch, without "attention" entries."""
        return {name: number for name, number in self if not isinstance(number, str)}

    @property
    def one(self) -> float | None:
        numbers = {*self.given.values()}
        return numbers.pop() if len(numbers) == 1 else None

    @model_validator(mode="before")
    @classmethod
    def _both_alike(cls, value: object) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return {"attention": float(value), "feedforward": float(value)}
        if not isinstance(value, (dict, cls)):
            raise PydanticCustomError("per_branch", "expected a number or a table")
        if isinstance(value, dict):  # so that equal numbers compare as equal
            followed, others = value.get("attention", 1.0), ("recurrence", "cross_attention")
            value = {k: v for k, v in value.items() if k not in others or v != followed}
        return value


class Residual(Choice):
    """The axis of residual wirings: connections of branches and the residual stream. Formulas are for one branch f; a
    layer applies them per branch. Parallel branches, attention and a recurrence, read the same normed stream, and f is
    their sum; a norm of the output is separate for each.

    Each term added to the stream passes through dropout and is multiplied by `multiplier`, which formulas omit.
    """

    axis: ClassVar[str] = "residual"
    final_norm: ClassVar[bool]
    """True if the stream leaves the layers without a norm and a final norm must follow."""
    flow: ClassVar[str] = ""
    """Path of x in drawings: `<` for the start of the skip connection, `norm`, the branch `f`, and `+` for the sum."""
    at_once: ClassVar[bool] = False
    """True if all branches read the same x."""
    stability: ClassVar[str] = ""
    """Name in the table of methods that bound activations; empty if it is none."""
    dropout: Probability = 0.0
    """Share of each branch's output dropped in training."""
    multiplier: PerBranch = Field(PerBranch(), examples=[0.5])
    """Factor of a branch before it is added (Granite; MiniMax's beta)."""
    embedding_skip: bool = False
    """Begin each layer with x = a x + b x0, with x0 the stream before the first layer and learned scalars a and b per
    layer, initially 1 and 0 (modded-nanogpt, nanochat)."""

    layer_embedding: Width | Literal["none"] = Field("none", examples=[256])
    """Width of a vector e per token and layer: a row of the layer's table plus a normed projection of the embedding. A
    layer ends with x + norm(out(GELU(gate(x)) * e)) (Gemma 3n, Gemma 4). "none": no such vectors."""
    layer_scalar: bool = False
    """End each layer with x = s x, with an untrained scalar s from the checkpoint, initially 1 (Gemma 4)."""

    is_reversible: ClassVar[bool] = False
    """True if a layer's input is recomputed from its output in the backward pass."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.streams > 1 and self.layer_embedding != "none":
            yield f'layer_embedding: found {self.layer_embedding} with {self.streams} streams; expected "none"'
        if self.streams > 1 and self.layer_scalar:
            yield f"layer_scalar: found true with {self.streams} streams; expected false"

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        changes = super().scaled_down(to)
        if self.layer_embedding != "none":
            changes["layer_embedding"] = to.width(self.layer_embedding)
        return changes

    @property
    def streams(self) -> int:
        """Number of parallel streams of the model's width."""
        return 1

    def output_dim(self, dim: int) -> int:
        """Return the width of the last layer's output in a model of width `dim`."""
        return dim

    @property
    def init_gain(self) -> float:
        """Factor of initial values in branches, except the query and key projections."""
        return 1.0

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a layer's wiring, without norms."""
        return 2 * self.embedding_skip

    def norm_names(self, groups: Groups) -> list[str]:
        """Return the names of a layer's norms; by default one per group, before it."""
        return [*groups]

    def num_norms_of(self, groups: Groups) -> int:
        """Return the number of norms of a layer."""
        return len(self.norm_names(groups))


class PostNorm(Residual):
    """x = norm(x + f(x)) (Vaswani et al., 2017)."""

    kind: Literal["post"] = "post"
    final_norm: ClassVar[bool] = False
    flow: ClassVar[str] = "< f + norm"


class PreNorm(Residual):
    """x = x + f(norm(x)) (Xiong et al., 2020)."""

    kind: Literal["pre"] = "pre"
    final_norm: ClassVar[bool] = True
    flow: ClassVar[str] = "< norm f +"
    skip_norm: Literal["none", "attention", "cross_attention", "feedforward"] = "none"
    """Branch without a norm: the first attention of ModernBERT, because its embedding is normed already."""

    def norm_names(self, groups: Groups) -> list[str]:
        return [name for name in groups if name != self.skip_norm]


class SandwichNorm(Residual):
    """x = x + norm_out(f(norm(x))) (Ding et al., 2021; Gemma 2)."""

    kind: Literal["sandwich"] = "sandwich"
    final_norm: ClassVar[bool] = True
    flow: ClassVar[str] = "< norm f norm +"
    stability: ClassVar[str] = "pre+post norm"

    def num_norms_of(self, groups: Groups) -> int:
        return len(groups) + sum(map(len, groups.values()))


class OutputNorm(Residual):
    """x = x + norm(f(x)) (Liu et al., 2021, Swin v2; OLMo 2)."""

    kind: Literal["output"] = "output"
    final_norm: ClassVar[bool] = True
    flow: ClassVar[str] = "< f norm +"

    def norm_names(self, groups: Groups) -> list[str]:
        return [name for group in groups.values() for name in group]


class Parallel(Residual):
    """x = x + attention(norm(x)) + feedforward(norm(x)), both from the same x
    (Wang and Komatsuzaki, 2021; PaLM)."""

    kind: Literal["parallel"] = "parallel"
    final_norm: ClassVar[bool] = True
    flow: ClassVar[str] = "< norm f +"
    at_once: ClassVar[bool] = True
    num_norms: Literal[1, 2] = 1
    """1: one norm for both branches (GPT-J, PaLM); 2: one per branch (GPT-NeoX)."""

    def norm_names(self, groups: Groups) -> list[str]:
        return ["shared"] if self.num_norms == 1 else [*groups]


class NormedResidual(Residual):
    """h = norm(x), x = alpha h + f(h): the stream itself is normed (MiniMax; BLOOM's option)."""

    kind: Literal["norm_residual"] = "norm_residual"
    final_norm: ClassVar[bool] = True
    flow: ClassVar[str] = "norm < f +"
    alpha: PerBranch = Field(PerBranch(), examples=[0.5])
    """Factor of the normed stream."""


class DeepNorm(Residual):
    """x = norm(alpha x + f(x)), with smaller initial values in the branches (Wang et al., 2022, DeepNet)."""

    kind: Literal["deepnorm"] = "deepnorm"
    final_norm: ClassVar[bool] = False
    stability: ClassVar[str] = "DeepNorm"
    flow: ClassVar[str] = "< f + norm"
    alpha: AutoFloat = Field("auto", examples=[2.0])
    """Weight of the stream; auto: (2 num_layers)^(1/4)."""
    gain: AutoFloat = Field("auto", examples=[0.5])
    """Factor of the initial values of value, out and feed-forward maps; auto: (8 num_layers)^(-1/4)."""

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        alpha, gain = (2 * sizes.num_layers) ** 0.25, (8 * sizes.num_layers) ** -0.25
        found = {"alpha": alpha} if self.alpha == "auto" else {}
        return found | ({"gain": gain} if self.gain == "auto" else {})

    @property
    def init_gain(self) -> float:
        assert self.gain != "auto"
        return self.gain
