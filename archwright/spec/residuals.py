"""Residual wiring: how branches join the stream that runs through the layers."""

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
    """A number for each branch; a plain number stands for all."""

    plain: ClassVar[str] = "number"
    attention: float = Field(1.0, examples=[0.5])
    """Of the attention branch."""
    recurrence: float | Literal["attention"] = Field("attention", examples=[0.5])
    """Of the recurrence; "attention": that of the attention branch, beside which it stands."""
    cross_attention: float | Literal["attention"] = Field("attention", examples=[0.5])
    """Of the cross-attention; "attention": that of the attention branch."""
    feedforward: float = Field(1.0, examples=[0.5])
    """Of the feed-forward branch."""

    def __getitem__(self, branch: str) -> float:
        number: float | str = getattr(self, branch)
        return self.attention if isinstance(number, str) else number

    @property
    def given(self) -> dict[str, float]:
        """The numbers by branch, without one that follows another's."""
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
        if isinstance(value, dict):  # equal numbers compare as equal, however they are written
            followed, others = value.get("attention", 1.0), ("recurrence", "cross_attention")
            value = {k: v for k, v in value.items() if k not in others or v != followed}
        return value


class Residual(Choice):
    """The axis of residual wirings: how branches join the stream that runs through the layers. Each is
    stated for one branch f; a layer applies it per branch. Branches side by side, attention and a recurrence, read
    the same normed stream, and f is their sum; a norm of their output is each branch's own.

    What a branch adds to the stream, as the formulas below say it, is multiplier times its dropout.
    """

    axis: ClassVar[str] = "residual"
    final_norm: ClassVar[bool]
    """Whether the stream leaves the layers without a norm, so that one must follow."""
    flow: ClassVar[str] = ""
    """The path of x, for drawings: `<` where the stream is kept aside, `norm`, the branch `f`, and
    `+` where the two meet."""
    at_once: ClassVar[bool] = False
    """Whether all branches read the same x."""
    stability: ClassVar[str] = ""
    """Its name among means that keep activations in bounds; empty where it is none."""
    dropout: Probability = 0.0
    """Share of each branch's output dropped in training."""
    multiplier: PerBranch = Field(PerBranch(), examples=[0.5])
    """Factor of a branch before it is added (Granite; MiniMax's beta)."""
    embedding_skip: bool = False
    """Begin each layer with x = a x + b x0, where x0 is the stream before the first layer, and a and b are learned
    numbers of the layer, 1 and 0 at first (modded-nanogpt, nanochat)."""

    layer_embedding: Width | Literal["none"] = Field("none", examples=[256])
    """Width of a vector e for each token and layer, a row of the layer's table plus a normed projection of the
    embedding. A layer ends with x + norm(out(GELU(gate(x)) * e)) (Gemma 3n, Gemma 4). "none": no such vectors."""
    layer_scalar: bool = False
    """End each layer with x = s x, where s is a number of a checkpoint that is not trained, 1 at first (Gemma 4)."""

    is_reversible: ClassVar[bool] = False
    """Whether the input of a layer follows from its output, so that the backward pass computes it again."""

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
        """Number of streams of the model's width side by side."""
        return 1

    def output_dim(self, dim: int) -> int:
        """Return the width of what leaves the layers of a model of width `dim`."""
        return dim

    @property
    def init_gain(self) -> float:
        """Factor of the initial values of maps in branches, other than those of queries and keys."""
        return 1.0

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a layer's wiring beside those of its norms."""
        return 2 * self.embedding_skip

    def norm_names(self, groups: Groups) -> list[str]:
        """Return the names of a layer's norms: by default one norm in front of each group."""
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
    """A branch that reads the stream as it is: the first attention of ModernBERT, as its embedding was
    normed already."""
    global_norm: bool = False
    """Norm the stack's `global_tokens`, where it has some, before attention by a norm of their own (Phang et al., 2022,
    Pegasus-X's published code)."""

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
    """One norm for both branches (GPT-J, PaLM), or one each (GPT-NeoX)."""

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
    """Multiplies the initial values of value, out and feed-forward maps; auto: (8 num_layers)^(-1/4)."""

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        alpha, gain = (2 * sizes.num_layers) ** 0.25, (8 * sizes.num_layers) ** -0.25
        found = {"alpha": alpha} if self.alpha == "auto" else {}
        return found | ({"gain": gain} if self.gain == "auto" else {})

    @property
    def init_gain(self) -> float:
        assert self.gain != "auto"
        return self.gain


class Reversible(Residual):
    """x1, x2 = x2, x1 + f(norm(x2)): two streams, both the embedding at first, take turns.

    Nothing of a layer is kept for the backward pass: x2 is the other stream afterwards, and x1 the difference (Gomez et
    al., 2017; Kitaev et al., 2020, Reformer, section 3)."""

    kind: Literal["reversible"] = "reversible"
    final_norm: ClassVar[bool] = True
    is_reversible: ClassVar[bool] = True
    join: Literal["concat", "mean"] = "concat"
    """What the last norm reads: both streams side by side (Reformer's published code), or their mean, which is as wide
    as one."""

    @property
    def streams(self) -> int:
        return 2

    def output_dim(self, dim: int) -> int:
        return 2 * dim if self.join == "concat" else dim
