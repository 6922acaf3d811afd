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
"""Largest ratio of hidden width to model width in a smaller model."""


class FeedForwardBias(BoolGroup):
    """Biases of the projections; `bias = true` or `false` sets all."""

    up: bool = False
    """Biases of the up and gate projections."""
    down: bool = False
    """Bias of the down projection."""


class FeedForward(Choice):
    """The axis of feed-forward branches: the per-token MLP."""

    axis: ClassVar[str] = "feedforward"

    @property
    def one_line(self) -> str:
        """Short summary of the branch, from resolved values."""
        return self.kind

    def num_parameters(self, dim: int) -> int:
        """Return the number of parameters, from resolved values."""
        return 0

    def num_active_parameters(self, dim: int) -> int:
        """Return the number of parameters used per token, from resolved values."""
        return self.num_parameters(dim)

    @property
    def hidden_layer(self) -> "Hidden | None":
        """The feed-forward with a hidden width: itself, or each of its experts; None if there is none."""
        return None

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Keep hidden widths' ratio to the model width, up to 16 (T5 11B has 64)."""
        widths = {
            name: min(to.width(value), max(MOST_WIDTHS * to.dim, 8))
            for name, value in self
            if name.endswith("hidden_dim") and type(value) is int
        }
        return super().scaled_down(to) | widths


class NoFeedForward(FeedForward):
    """No feed-forward branch: the layer has only attention or a recurrence."""

    kind: Literal["none"] = "none"

    @property
    def one_line(self) -> str:
        return ""


class Hidden(FeedForward):
    """Options of every feed-forward with a hidden layer."""

    usual_ratio: ClassVar[float]
    """Ratio of hidden width to model width if hidden_dim and ratio are unset."""
    gated: ClassVar[bool]
    hidden_dim: AutoWidth = Field("auto", examples=[2048])
    """Hidden width; auto: ratio dim, or else 4 dim (8/3 dim if gated), rounded up to a multiple of 64."""
    ratio: Annotated[float, Field(gt=0, le=1024)] | Literal["none"] = Field("none", examples=[4.0])
    """Hidden width over model width, to the nearest multiple of 8, if hidden_dim is auto; none: the usual ratio."""
    bias: FeedForwardBias = Field(FeedForwardBias(), examples=[True])
    """Biases of all projections."""
    hidden_norm: Norm = Field(NoNorm(), examples=[{"kind": "rms"}])
    """Norm of hidden values, before the down projection (Wang et al., 2022, Foundation Transformers; BitNet b1.58); the
    experts of a layer share it."""
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
        """Return the parameters of `number` feed-forwards with separate maps and a shared hidden norm."""
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
    """none: exact error function; tanh: its tanh approximation."""


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
    """a_p x^2 + b x above 0, a_n (exp(x) - 1 - x) + b x below, a_p and a_n learned (Huang and Schlag, 2025;
    Apertus)."""

    kind: Literal["xielu"] = "xielu"
    alpha_positive: float = Field(0.8, gt=0)
    """Initial a_p = softplus(p)."""
    alpha_negative: float = Field(0.8, gt=0)
    """Initial a_n = beta + softplus(n); above beta."""
    beta: float = Field(0.5, gt=0)
    """Slope b at 0."""

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
    """none: exact error function; tanh: its tanh approximation."""


class SwiGLU(Gated):
    """silu(gate_multiplier gate) * up (Shazeer, 2020, eq. 6)."""

    kind: Literal["swiglu"] = "swiglu"
    gate_multiplier: float = Field(1.0, gt=0)
    """Factor of the gate before silu (Falcon-H1)."""


class ClampedSwiGLU(Gated):
    """g sigmoid(sharpness g) * (u + 1), with g = min(gate, limit) and u = up clamped to +-limit (gpt-oss)."""

    kind: Literal["clamped_swiglu"] = "clamped_swiglu"
    limit: float = Field(7.0, gt=0)
    """Upper bound of the gate, and bound of |up|."""
    sharpness: float = Field(1.702, gt=0)
    """Slope of the sigmoid."""


class GEGELU(Gated):
    """quick_gelu(g) * (u + 1), with g = min(gate, limit) and u = up clamped to +-limit (Phi-3 small)."""

    kind: Literal["gegelu"] = "gegelu"
    limit: float = Field(20.0, gt=0)
    """Upper bound of the gate, and bound of |up|."""


class ChannelMix(FeedForward, Mixer):
    """V relu(K k)^2, k = x + m (x' - x), with the previous token x': RWKV's feed-forward (Peng et al., 2025, RWKV-7,
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
    """The axis of routing functions, from a router's logits in float32 to a token's experts and their weights."""

    axis: ClassVar[str] = "routing"
    sums_to_one: ClassVar[bool] = False
    """True if the weights of the chosen experts always add up to 1."""
    chooses_alone: ClassVar[bool] = False
    """True if groups and selection biases have no effect."""
    draws: ClassVar[bool] = False
    """True if experts are sampled in training."""


class SoftmaxRouting(Routing):
    """A softmax over all experts (Mixtral)."""

    kind: Literal["softmax"] = "softmax"


class SoftmaxOfChosen(Routing):
    """A softmax over the chosen experts (gpt-oss)."""

    kind: Literal["softmax_of_chosen"] = "softmax_of_chosen"
    sums_to_one: ClassVar[bool] = True


class SigmoidRouting(Routing):
    """A sigmoid per expert (DeepSeek V3)."""

    kind: Literal["sigmoid"] = "sigmoid"


class SparseMixer(Routing):
    """A softmax, for one choice after another, over the experts close to the best remaining one (Liu et al., 2024,
    GRIN; Phi-3.5-MoE)."""

    kind: Literal["sparsemixer"] = "sparsemixer"
    chooses_alone: ClassVar[bool] = True
    draws: ClassVar[bool] = True


class Experts(FeedForward):
    """A mixture of experts: y = sum of weight_e expert_e(x), over the `top_k` of `num_experts` feed-forwards that a
    router chooses per token (Shazeer et al., 2017; Mixtral). Without a `capacity`, no token is dropped."""

    kind: Literal["experts"] = "experts"
    num_experts: Count = 8
    """Number of routed experts."""
    top_k: Count = 2
    """Routed experts per token."""
    expert: Hidden = SwiGLU()
    """Feed-forward of each expert."""
    routing: Routing = SoftmaxRouting()
    """Choice and weights of experts, from the router's logits."""
    capacity: OptionalTokens = Field("none", examples=[64])
    """Most tokens per expert and row of tokens read together, the first ones; later tokens get nothing from it (Fedus
    et al., 2021, section 2.2). With a cache, the count restarts at each step."""
    jitter: float = Field(0.01, gt=0)
    """For sparsemixer: experts below the best by more than twice this share are excluded."""
    normalize_weights: bool = True
    """Divide the weights of the chosen experts by their sum."""
    normalize_power: float = Field(1.0, gt=0)
    """Exponent p of the divisor (sum of w^p)^(1/p) (DBRX)."""
    normalize_eps: float = Field(1e-20, gt=0, examples=[1e-6])
    """Added to the divisor (LFM2: 1e-6)."""
    normalize_min: float = Field(0.0, ge=0, examples=[1e-12])
    """Least divisor (ERNIE 4.5)."""
    routed_scaling_factor: float = Field(1.0, gt=0)
    """Factor of the chosen experts' sum (DeepSeek V2)."""
    router_bias: bool = False
    """Bias of the router (gpt-oss)."""
    selection_bias: bool = False
    """Biases added to scores for choosing experts, not for weights; they have no gradient (DeepSeek V3)."""
    selection_bias_update_rate: float = Field(0.0, ge=0, examples=[0.001])
    """Change of the selection biases per training step: up for experts with fewer tokens than the mean, down for others
    (Wang et al., 2024, auxiliary-loss-free; DeepSeek V3). If positive, these biases exist."""
    num_groups: Count = 1
    """Groups of experts, for choosing from the best groups only (DeepSeek V2)."""
    top_groups: Count = 1
    """Groups that a token chooses from."""
    group_score: Literal["max", "top_two"] = "max"
    """Score of a group. max: its best expert's score (DeepSeek V2); top_two: the sum of its best two (V3)."""
    router_weight_on: Literal["output", "input"] = "output"
    """Multiply an expert's output, or its input (Llama 4), by its weight."""
    shared: Literal["none", "added", "averaged", "gated"] = "none"
    """A shared expert for all tokens, in addition to the chosen ones. added: its output is added (DeepSeekMoE);
    averaged: added, and the sum divided by two (Command A+); gated: times sigmoid(w x) (Qwen2-MoE)."""
    shared_hidden_dim: AutoWidth = Field("auto", examples=[1024])
    """Hidden width of the shared expert; auto: the routed experts' width."""
    latent_dim: Width | Literal["none"] = Field("none", examples=[256])
    """Width of the tokens in the experts, between a map down and a map up; none: the model's width. Router and shared
    expert read the model's width (Nemotron 3 Super: latent MoE)."""
    out_bias: bool = False
    """Add a learned bias to the result (JetMoE)."""
    balance_loss: float = Field(0.01, ge=0)
    """Weight of the load-balancing loss num_experts sum of f_e p_e of each layer, with the share f_e of choices on
    expert e and its mean score p_e (Fedus et al., 2021, eq. 4)."""
    balance_over: Literal["layer", "model"] = "layer"
    """Averages f_e and p_e. layer: in each layer; model: over all layers together (transformers' auxiliary loss)."""
    router_z_loss: float = Field(0.0, ge=0, examples=[0.001])
    """Weight of the z-loss, the mean of log² of the router's softmax sum in each layer (Zoph et al., 2022, eq. 5)."""

    @property
    def has_selection_bias(self) -> bool:
        """True if selection biases are added to scores for choosing experts."""
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
        """Limit a token to two of the fewer experts, and groups to at least two experts."""
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
        """Return the number of parameters with `experts` experts and the whole router."""
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
        """Allow `expert.hidden_dim` without a kind, for the default kind."""
        return {"kind": "swiglu"} | value if isinstance(value, dict) else value


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple
