"""Feed-forward: the per-token MLP."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from archwright.spec.choice import (
    AutoWidth,
    BoolGroup,
    Choice,
    Count,
    ModelSizes,
    OptionalTokens,
    Probability,
    ScaleDown,
    Width,
)
from archwright.spec.mixers import Mixer
from archwright.spec.norms import NoNorm, Norm

MOST_WIDTHS = 16
"""Of a smaller model's hidden layer, how many widths of the model it has at most."""


class FeedForwardBias(BoolGroup):
    """Which projections carry a bias; `bias = true` or `false` sets all."""

    up: bool = False
    """A bias after the projection up, and after that of the gate."""
    down: bool = False
    """A bias after the projection down."""


class FeedForward(Choice):
    """The axis of feed-forward branches: the per-token MLP."""

    axis: ClassVar[str] = "feedforward"

    @property
    def one_line(self) -> str:
        """Summary of a branch whose values are resolved, in a few words."""
        return self.kind

    def num_parameters(self, dim: int) -> int:
        """Return the number of parameters of a branch whose values are resolved."""
        return 0

    def num_active_parameters(self, dim: int) -> int:
        """Return the number of those that one token meets."""
        return self.num_parameters(dim)

    @property
    def hidden_layer(self) -> "Hidden | None":
        """The layer with a hidden width: the feed-forward itself, or each of its experts; None without one."""
        return None

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Hidden widths keep their share of the model width, up to 16 of it (T5 11B has 64)."""
        widths = {
            name: min(to.width(value), max(MOST_WIDTHS * to.dim, 8))
            for name, value in self
            if name.endswith("hidden_dim") and type(value) is int
        }
        return super().scaled_down(to) | widths


class NoFeedForward(FeedForward):
    """No feed-forward branch: the layer is attention alone."""

    kind: Literal["none"] = "none"

    @property
    def one_line(self) -> str:
        return ""


class Hidden(FeedForward):
    """Options of every feed-forward with a hidden layer."""

    usual_ratio: ClassVar[float]
    """Hidden width over model width where neither hidden_dim nor ratio is given."""
    gated: ClassVar[bool]
    hidden_dim: AutoWidth = Field("auto", examples=[2048])
    """Width of the hidden layer; auto: ratio dim, or else 4 dim, or 8/3 dim where gated, rounded up to 64."""
    ratio: Annotated[float, Field(gt=0, le=1024)] | Literal["none"] = Field("none", examples=[4.0])
    """Hidden width over model width, to the nearest multiple of 8, where hidden_dim is auto; none: the usual
    one."""
    bias: FeedForwardBias = Field(FeedForwardBias(), examples=[True])
    """Biases of all projections."""
    hidden_norm: Norm = Field(NoNorm(), examples=[{"kind": "rms"}])
    """Norm over hidden values, before the projection down (Wang et al., 2022, Foundation Transformers;
    BitNet b1.58); experts of a layer share it."""
    dropout: Probability = 0.0
    """Share of hidden values dropped in training."""

    @property
    def hidden_layer(self) -> "Hidden":
        return self

    def width(self, dim: int) -> int:
        """Return the hidden width as a number."""
        if self.hidden_dim != "auto":
            return self.hidden_dim
        if self.ratio != "none":
            return max(8, 8 * round(self.ratio * dim / 8))
        return round_up(round(self.usual_ratio * dim), 64)

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {"hidden_dim": self.width(sizes.dim), "ratio": "none"}

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.ratio != "none" and self.hidden_dim != "auto":
            yield (
                f"ratio: found {self.ratio:g} beside hidden_dim = {self.hidden_dim}; expected one of the two: set "
                "hidden_dim=auto or ratio=none"
            )

    @property
    def one_line(self) -> str:
        return f"{self.kind} {self.hidden_dim}"

    def num_parameters(self, dim: int) -> int:
        return self.num_parameters_of(1, dim, int(self.hidden_dim))

    def num_parameters_of(self, number: int, dim: int, hidden_dim: int) -> int:
        """Return the number of parameters of so many at once, which have maps of their own and share all else."""
        maps = 2 if self.gated else 1
        weights = (maps + 1) * dim * hidden_dim
        biases = self.bias.up * maps * hidden_dim + self.bias.down * dim
        return number * (weights + biases) + self.hidden_norm.num_parameters(hidden_dim)


class Plain(Hidden):
    """down(f(up(x))): two projections, with a function f (Vaswani et al., 2017, section 3.3)."""

    usual_ratio: ClassVar[float] = 4.0
    gated: ClassVar[bool] = False


class Gated(Hidden):
    """down(f(gate(x)) * up(x)): three projections, with a function f of the gate (Shazeer, 2020)."""

    usual_ratio: ClassVar[float] = 8 / 3
    gated: ClassVar[bool] = True


class ReLU(Plain):
    """max(0, x) (Vaswani et al., 2017)."""

    kind: Literal["relu"] = "relu"


class GELU(Plain):
    """x Phi(x), exact or in the tanh approximation of GPT-2 (Hendrycks and Gimpel, 2016)."""

    kind: Literal["gelu"] = "gelu"
    approximate: Literal["none", "tanh"] = "none"
    """Exact error function, or its tanh approximation."""


class QuickGELU(Plain):
    """x sigmoid(1.702 x) (Hendrycks and Gimpel, 2016, section 2)."""

    kind: Literal["quick_gelu"] = "quick_gelu"


class SiLU(Plain):
    """x sigmoid(x), also called swish (Elfwing et al., 2017)."""

    kind: Literal["silu"] = "silu"


class SquaredReLU(Plain):
    """max(0, x)^2 (So et al., 2021)."""

    kind: Literal["squared_relu"] = "squared_relu"


class XIELU(Plain):
    """a_p x^2 + b x above 0, a_n (exp(x) - 1 - x) + b x below, with two learned numbers per layer
    (Huang and Schlag, 2025; Apertus)."""

    kind: Literal["xielu"] = "xielu"
    alpha_positive: float = Field(0.8, gt=0)
    """Initial a_p = softplus(p)."""
    alpha_negative: float = Field(0.8, gt=0)
    """Initial a_n = beta + softplus(n); above beta."""
    beta: float = Field(0.5, gt=0)
    """The slope b at 0."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        yield from super().contradictions(sizes)
        if self.alpha_negative <= self.beta:
            yield f"alpha_negative: found {self.alpha_negative:g}; expected more than beta = {self.beta:g}"

    def num_parameters_of(self, number: int, dim: int, hidden_dim: int) -> int:
        return super().num_parameters_of(number, dim, hidden_dim) + 2


class GLU(Gated):
    """sigmoid(gate) * up (Dauphin et al., 2016)."""

    kind: Literal["glu"] = "glu"


class Bilinear(Gated):
    """gate * up (Mnih and Hinton, 2007; Shazeer, 2020)."""

    kind: Literal["bilinear"] = "bilinear"


class ReGLU(Gated):
    """relu(gate) * up (Shazeer, 2020)."""

    kind: Literal["reglu"] = "reglu"


class SquaredReGLU(Gated):
    """relu(gate)^2 * up (Ma et al., 2025, BitNet b1.58 2B4T, section 2)."""

    kind: Literal["squared_reglu"] = "squared_reglu"


class GeGLU(Gated):
    """gelu(gate) * up (Shazeer, 2020)."""

    kind: Literal["geglu"] = "geglu"
    approximate: Literal["none", "tanh"] = "none"
    """Exact error function, or its tanh approximation."""


class SwiGLU(Gated):
    """silu(gate_multiplier gate) * up (Shazeer, 2020, eq. 6)."""

    kind: Literal["swiglu"] = "swiglu"
    gate_multiplier: float = Field(1.0, gt=0)
    """Factor of the gate before silu (Falcon-H1)."""


class ClampedSwiGLU(Gated):
    """g sigmoid(sharpness g) * (u + 1), with g = min(gate, limit) and u = up cut to +-limit (gpt-oss)."""

    kind: Literal["clamped_swiglu"] = "clamped_swiglu"
    limit: float = Field(7.0, gt=0)
    """Largest gate, and largest size of up."""
    sharpness: float = Field(1.702, gt=0)
    """Slope of the sigmoid."""


class GEGELU(Gated):
    """quick_gelu(g) * (u + 1), with g = min(gate, limit) and u = up cut to +-limit (Phi-3 small)."""

    kind: Literal["gegelu"] = "gegelu"
    limit: float = Field(20.0, gt=0)
    """Largest gate, and largest size of up."""


class ChannelMix(FeedForward, Mixer):
    """V relu(K k)^2, k = x + m (x' - x), with x' the token before: RWKV's feed-forward (Peng et al., 2025, RWKV-7,
    section 4.3)."""

    kind: Literal["channel_mix"] = "channel_mix"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    hidden_dim: AutoWidth = Field("auto", examples=[1024])
    """Width of the hidden layer; auto: 4 dim."""
    receptance: bool = False
    """Multiply by sigmoid(R r), r = x + m_r (x' - x) (Peng et al., 2023, RWKV, eq. 17 to 19)."""

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {"hidden_dim": 4 * sizes.dim if self.hidden_dim == "auto" else self.hidden_dim}

    @property
    def one_line(self) -> str:
        return f"channel mix {self.hidden_dim}"

    def num_parameters(self, dim: int) -> int:
        return 2 * dim * int(self.hidden_dim) + dim + self.receptance * (dim + 1) * dim


class Routing(Choice):
    """The axis of what a router's numbers, in float32, are made into: which experts a token goes through, and with
    what weights."""

    axis: ClassVar[str] = "routing"
    sums_to_one: ClassVar[bool] = False
    """Whether the weights of the chosen experts add up to 1, whatever the router says."""
    chooses_alone: ClassVar[bool] = False
    """Whether groups and numbers that are added for choosing have no say."""
    draws: ClassVar[bool] = False
    """Whether experts are drawn by chance in training."""


class SoftmaxRouting(Routing):
    """A softmax over all experts (Mixtral)."""

    kind: Literal["softmax"] = "softmax"


class SoftmaxOfChosen(Routing):
    """A softmax over the chosen experts (gpt-oss)."""

    kind: Literal["softmax_of_chosen"] = "softmax_of_chosen"
    sums_to_one: ClassVar[bool] = True


class SigmoidRouting(Routing):
    """A sigmoid of each (DeepSeek V3)."""

    kind: Literal["sigmoid"] = "sigmoid"


class SparseMixer(Routing):
    """For one choice after the other, a softmax over those that come near the best one left (Liu et al., 2024,
    GRIN; Phi-3.5-MoE)."""

    kind: Literal["sparsemixer"] = "sparsemixer"
    chooses_alone: ClassVar[bool] = True
    draws: ClassVar[bool] = True


class Experts(FeedForward):
    """A mixture of experts: each token goes through `top_k` of `num_experts` feed-forwards that a router
    chooses for it, y = sum of weight_e expert_e(x); no token is dropped, unless there is a `capacity`
    (Shazeer et al., 2017; Mixtral)."""

    kind: Literal["experts"] = "experts"
    num_experts: Count = 8
    """Experts that are chosen from."""
    top_k: Count = 2
    """Experts that a token goes through."""
    expert: Hidden = SwiGLU()
    """The feed-forward of each expert, all alike."""
    routing: Routing = SoftmaxRouting()
    """How experts are chosen by the router's numbers, and weighed."""
    capacity: OptionalTokens = Field("none", examples=[64])
    """Tokens that an expert takes at most of a row of tokens that are read together, the first ones; what comes later
    gets nothing from it (Fedus et al., 2021, section 2.2). A cache begins to count anew at each step."""
    jitter: float = Field(0.01, gt=0)
    """Of sparsemixer: what is below the best by more than twice this share is not near it."""
    normalize_weights: bool = True
    """Divide the weights of the chosen experts by their sum."""
    normalize_power: float = Field(1.0, gt=0)
    """Divide by (sum of w^p)^(1/p) instead, with this p (DBRX)."""
    normalize_eps: float = Field(1e-20, gt=0, examples=[1e-6])
    """Number that is added to this sum (LFM2: 1e-6)."""
    normalize_min: float = Field(0.0, ge=0, examples=[1e-12])
    """Divide by this at least (ERNIE 4.5)."""
    routed_scaling_factor: float = Field(1.0, gt=0)
    """Factor of the chosen experts' sum (DeepSeek V2)."""
    router_bias: bool = False
    """A bias of the router (gpt-oss)."""
    selection_bias: bool = False
    """Numbers added to scores for choosing alone, not for weights; they have no gradient (DeepSeek V3)."""
    selection_bias_update_rate: float = Field(0.0, ge=0, examples=[0.001])
    """In training, how far each step moves the numbers that are added for choosing, which are there then: up
    for experts that fewer tokens than the mean were sent to, down for others (Wang et al., 2024,
    auxiliary-loss-free; DeepSeek V3)."""
    num_groups: Count = 1
    """Groups of experts, of which only the best are chosen from (DeepSeek V2)."""
    top_groups: Count = 1
    """Groups that a token chooses from."""
    group_score: Literal["max", "top_two"] = "max"
    """Score of a group: that of its best expert (DeepSeek V2), or the sum of its best two (V3)."""
    router_weight_on: Literal["output", "input"] = "output"
    """Whether an expert's weight multiplies its output or its input (Llama 4)."""
    shared: Literal["none", "added", "averaged", "gated"] = "none"
    """An expert that all tokens go through beside those chosen, otherwise like them: added (DeepSeekMoE),
    added and all divided by two (Command A+), or times sigmoid(w x) (Qwen2-MoE)."""
    shared_hidden_dim: AutoWidth = Field("auto", examples=[1024])
    """Hidden width of the shared expert; auto: that of the others."""
    latent_dim: Width | Literal["none"] = Field("none", examples=[256])
    """Width of the tokens in the experts, between a map down and a map up; none: the model's width. Router and shared
    expert read the model's width (Nemotron 3 Super: latent MoE)."""
    out_bias: bool = False
    """Learn an offset of the result (JetMoE)."""
    balance_loss: float = Field(0.01, ge=0)
    """In training, what is minimised too: this times num_experts sum of f_e p_e in each layer, f_e the share
    of the choices that fell on expert e, p_e its mean score (Fedus et al., 2021, eq. 4)."""
    balance_over: Literal["layer", "model"] = "layer"
    """Over what f_e and p_e are taken: each layer by itself, or all layers together, once for the model
    (transformers' auxiliary loss)."""
    router_z_loss: float = Field(0.0, ge=0, examples=[0.001])
    """In training, what is minimised too: this times the mean of log² of the router's softmax sum in each
    layer (Zoph et al., 2022, eq. 5)."""

    @property
    def has_selection_bias(self) -> bool:
        """Whether numbers are added to scores for choosing alone."""
        return self.selection_bias or self.selection_bias_update_rate > 0

    @property
    def hidden_layer(self) -> Hidden:
        return self.expert

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        experts, groups, size = (
            self.num_experts,
            self.num_groups,
            self.num_experts // self.num_groups,
        )
        if self.top_k > experts:
            yield f"top_k: found {self.top_k}; expected at most num_experts = {experts}"
        if experts % groups:
            yield f"num_groups: found {groups}; expected a divisor of num_experts = {experts}"
        if size and not groups == 1 == self.top_groups:
            least = -(-min(self.top_k, experts) // size)
            if not least <= self.top_groups <= groups:
                yield (
                    f"top_groups: found {self.top_groups}; expected {least} to num_groups = {groups}, "
                    f"for top_k = {self.top_k} experts out of groups of {size}"
                )
        if self.group_score == "top_two" and size == 1 != groups:
            yield 'group_score: found "top_two" of groups of one expert; expected "max", or fewer num_groups'
        idle = {"selection_bias": False, "selection_bias_update_rate": 0, "num_groups": 1}
        for name, value in idle.items() if self.routing.chooses_alone else ():
            if (found := getattr(self, name)) != value:
                yield (
                    f"{name}: found {str(found).lower()} with routing.kind "
                    f'"{self.routing.kind}"; expected {str(value).lower()}'
                )

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Of fewer experts a token chooses two at most, and groups of them hold two at least."""
        groups = max(1, to.num_experts // 2)
        latent = {} if self.latent_dim == "none" else {"latent_dim": to.width(self.latent_dim)}
        return (
            super().scaled_down(to)
            | latent
            | {
                "num_experts": min(self.num_experts, to.num_experts),
                "top_k": min(self.top_k, 2),
                "num_groups": min(self.num_groups, groups),
                "top_groups": min(self.top_groups, groups // 2 or 1),
            }
        )

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        width = self.expert.width(sizes.dim)
        shared = {"shared_hidden_dim": width} if self.shared_hidden_dim == "auto" else {}
        return {
            "expert": self.expert.numbers(sizes),
            "selection_bias": self.has_selection_bias,
            **shared,
        }

    @property
    def one_line(self) -> str:
        return f"{self.top_k} of {self.num_experts} experts {self.expert.one_line}"

    def num_parameters(self, dim: int) -> int:
        return self._num_parameters(self.num_experts, dim)

    def num_active_parameters(self, dim: int) -> int:
        return self._num_parameters(self.top_k, dim)

    def _num_parameters(self, experts: int, dim: int) -> int:
        """Return the number of parameters with so many experts; the router has all of them."""
        router = self.num_experts * (dim + self.router_bias) + self.out_bias * dim
        shared = 0
        if self.shared != "none":
            shared = self.expert.num_parameters_of(1, dim, int(self.shared_hidden_dim))
            shared += (self.shared == "gated") * dim
        if self.latent_dim != "none":
            router += 2 * dim * self.latent_dim
            dim = self.latent_dim
        hidden_dim = int(self.expert.hidden_dim)
        return router + shared + self.expert.num_parameters_of(experts, dim, hidden_dim)

    @field_validator("expert", mode="before")
    @classmethod
    def _kind_of_expert(cls, value: object) -> Any:
        """Let `expert.hidden_dim` be given alone, beside the default kind."""
        return {"kind": "swiglu"} | value if isinstance(value, dict) else value


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple
