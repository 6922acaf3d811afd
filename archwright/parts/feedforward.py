"""Feed-forward branches: plain, gated and mixtures of experts, with their activations."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.parts.branch import Branch
from archwright.parts.channel_mix import ChannelMix
from archwright.parts.leaves import is_watched
from archwright.parts.linear import GroupedLinear, Linear, project, set_blocks, to_autocast_dtype
from archwright.parts.norms import NORMS, upcast, without_autocast
from archwright.parts.registry import Registry
from archwright.parts.routing import ROUTINGS, Router
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import feedforward as spec
from archwright.spec.errors import UserError

Activation = Callable[[Tensor], Tensor]


class _Dense(Branch):
    """Base of plain and gated feed-forwards. Shapes: x [..., dim], hidden [..., hidden_dim]."""

    gate: Linear

    def __init__(self, spec: spec.Hidden, dim: int) -> None:
        super().__init__()
        width = spec.width(dim)
        self.spec, self.activation = spec, _activation(spec)
        if spec.gated:
            self.gate = Linear(dim, width, bias=spec.bias.up)
        self.up = Linear(dim, width, bias=spec.bias.up)
        self.down = Linear(width, dim, bias=spec.bias.down, is_residual_output=True)
        self.norm: nn.Module = NORMS.make(spec.hidden_norm, width)

    @property
    def inputs(self) -> list[Linear]:
        """The maps that read x."""
        return [self.gate, self.up] if self.spec.gated else [self.up]

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        # A norm needs all hidden values.
        return (
            TensorParallel({"hidden_dim": self.up.d_out}) if self.spec.hidden_norm.is_none else None
        )

    def forward(
        self, x: Float[Tensor, "*batch dim"], projected: Sequence[Tensor] | None = None
    ) -> Float[Tensor, "*batch dim"]:
        """Return the branch's output; `projected` are the results of `inputs`, if already computed."""
        if projected is None:
            projected = project(x, self.inputs)
        # [..., hidden_dim]
        hidden = F.dropout(self.activation(*projected), self.spec.dropout, self.training)
        down: Tensor = self.down(self.norm(hidden))
        return down

    def extra_repr(self) -> str:
        return self.spec.kind


class Plain(_Dense):
    """down(norm(f(up(x)))), with f and an optional norm from the spec.

    Vaswani et al., 2017, section 3.3; Wang et al., 2022, Foundation Transformers, section 2.2 (norm).
    """


class Gated(_Dense):
    """down(norm(f(gate(x), up(x)))), with f(g, u), usually act(g) * u, and an optional norm from the spec.

    Shazeer, 2020, GLU Variants Improve Transformer, eq. 5 and 6; Ma et al., 2024, BitNet b1.58 (norm).
    """


class RouterAuxLoss(NamedTuple):
    """Auxiliary loss of one layer: factor * sum of f_e p_e + rest."""

    share: Float[Tensor, " experts"]
    """f_e, the share of each expert in all choices."""
    mean_score: Float[Tensor, " experts"]
    """p_e, the mean score of each expert."""
    factor: float
    """Factor of the sum of f_e p_e."""
    rest: Tensor
    """Remaining loss of the layer, such as the z-loss."""
    together: bool = True
    """True if f_e and p_e are averaged over all layers."""


MOST_IN_BLOCK = 32
"""Largest block size for padding the rows of an expert on a CPU."""


class _WideLinear(Linear):
    """Linear in float32 or wider, without autocast: rounding would change choices of experts."""

    def forward(self, x: Float[Tensor, "rows d_in"]) -> Float[Tensor, "rows d_out"]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(dtype)
        with without_autocast(x.device.type):
            return F.linear(x.to(dtype), self.weight.to(dtype), bias)


class Experts(Branch):
    """y = scale * sum over the top_k chosen e of w_e expert_e(x), + shared(x), + bias.

    With a latent width, the sum is U sum of w_e expert_e(D x), with maps D down and U up.

    Weights w come from router scores, such as softmax(R x) or sigmoid(R x), in float32 or wider, because the choice
    depends on small differences. Rows are sorted by expert, so that each expert computes one matrix product. Without a
    capacity, no row is dropped. Shapes: x [..., dim], router R [num_experts, dim], the experts' matrices
    [num_experts, hidden_dim, dim] and [num_experts, dim, hidden_dim].

    Shazeer et al., 2017, Outrageously Large Neural Networks; DeepSeek-AI, 2024, DeepSeek-V3, section 2.1.2.

    Attributes:
        auxiliary: auxiliary loss of the last forward pass in training, until the caller removes it.
        load: number of tokens per expert in training since the last optimizer step.
    """

    counts = ("load",)
    auxiliary_name = "router_loss"

    def __init__(self, spec: spec.Experts, dim: int) -> None:
        super().__init__()
        self.spec = spec
        self.routing: Router = ROUTINGS.make(spec.routing, spec)
        self.router = _WideLinear(dim, spec.num_experts, bias=spec.router_bias, deepnorm=False)
        active_fraction = spec.top_k / spec.num_experts
        expert = spec.expert.model_copy(update={"hidden_dim": spec.expert.width(dim)})
        self.latent_down: Linear | None = None
        self.latent_up: Linear | None = None
        if (latent := spec.latent_dim) != "none":
            self.latent_down, self.latent_up = Linear(dim, latent), Linear(latent, dim)
        self.experts = GroupedExperts(
            expert,
            dim if latent == "none" else latent,
            spec.num_experts,
            active_fraction=active_fraction,
        )
        self.shared: nn.Module | None = None
        self.shared_gate = Linear(dim, 1, deepnorm=False) if spec.shared == "gated" else None
        set_blocks(1, self.router, self.shared_gate, self.latent_down, self.latent_up)
        if spec.shared != "none":
            width = spec.shared_hidden_dim
            if width == "auto":
                width = spec.expert.width(dim)
            shared = spec.expert.model_copy(update={"hidden_dim": width})
            self.shared = FEEDFORWARDS.make(shared, dim)
        self.bias = nn.Parameter(torch.zeros(dim)) if spec.out_bias else None
        # A buffer: it has no gradient, but is saved with the weights.
        bias = torch.zeros(spec.num_experts) if spec.has_selection_bias else None
        self.register_buffer("selection_bias", bias)
        self.selection_bias: Tensor | None
        self.auxiliary: RouterAuxLoss | None = None
        self.load: Tensor | None = None

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        # [tokens, dim]
        rows = x.flatten(0, -2)
        logits = self.router(rows)
        chosen, weights = self.route(logits)
        # [tokens, top_k] -> [tokens * top_k], with all rows of one expert adjacent
        sorted_experts, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(self.spec.num_experts, device=x.device)
        ends = torch.searchsorted(sorted_experts, numbers, right=True, out_int32=True)
        # Sorted position of each (token, choice) pair, and number of rows of each expert.
        place, sent_to = order.argsort(), ends.diff(prepend=ends.new_zeros(1))
        on_cpu = x.device.type == "cpu" and not is_watched()
        block = rows_in_block(len(order), self.spec.num_experts) if on_cpu else 1
        if block > 1:
            source, filled, ends = _filled_up(sorted_experts, ends, block)
            order, sorted_experts, place = order[source], sorted_experts[source], filled[place]
        latents = rows if self.latent_down is None else self.latent_down(rows)
        sent = latents[order // self.spec.top_k]
        if self.spec.router_weight_on == "input":
            # [tokens * top_k, dim]
            sent = sent * weights.flatten()[order, None].to(sent.dtype)
        found = self.experts(sent, sorted_experts, ends)
        # A gather and a sum are deterministic; a scatter-add on a GPU is not.
        per_token = found[place].unflatten(0, chosen.shape)  # [tokens, top_k, dim]
        if self.spec.router_weight_on == "output":
            per_token = per_token * weights[..., None]
        if self.spec.capacity != "none":
            has_room = self._has_room(chosen, x.shape[:-1], self.spec.capacity)
            per_token = per_token * has_room[..., None]
        out = (per_token.sum(1) * self.spec.routed_scaling_factor).to(found.dtype)
        out = out if self.latent_up is None else self.latent_up(out)
        if self.training and torch.is_grad_enabled():
            # Also in a recomputed pass, because the gradient needs the values.
            auxiliary = self._auxiliary(logits, sent_to)
            if self.first_pass:
                self.auxiliary = auxiliary
            if self.first_pass and self.spec.selection_bias_update_rate:
                self.load = sent_to if self.load is None else self.load + sent_to
        out = self._with_shared(rows, out)
        # [..., dim]
        return (out if self.bias is None else out + self.bias.to(out.dtype)).view(x.shape)

    @property
    def along_text(self) -> str:
        return "" if self.spec.capacity == "none" else "capacity"

    @property
    def across_layers(self) -> str:
        return "balance_over" if self.spec.balance_over == "model" else ""

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        """Ranks split the hidden values of every expert, and each rank routes all tokens."""
        biased = self.bias is not None or self.experts.down.bias is not None
        if biased or not self.spec.expert.hidden_norm.is_none:
            return None
        sizes = {"expert.hidden_dim": self.experts.up.d_out}
        if isinstance(self.shared, Branch):
            if self.shared.tensor_parallel is None:
                return None
            sizes["shared_hidden_dim"] = self.shared.tensor_parallel.sizes["hidden_dim"]
        return TensorParallel(sizes)

    @property
    def expert_parallel(self) -> "GroupedExperts":
        return self.experts

    def route(
        self, logits: Float[Tensor, "tokens num_experts"]
    ) -> tuple[Int[Tensor, "tokens top_k"], Float[Tensor, "tokens top_k"]]:
        """Return the chosen experts of each token, and their weights."""
        return self.routing(logits, self.selection_bias, training=self.training)

    def _has_room(
        self, chosen: Int[Tensor, "tokens top_k"], shape: torch.Size, capacity: int
    ) -> Bool[Tensor, "tokens top_k"]:
        """Return the choices within the capacity; `shape` is that of the batch."""
        numbers = torch.arange(self.spec.num_experts, device=chosen.device)
        # [..., length, num_experts]
        taken = (chosen[..., None] == numbers).sum(1).view(*shape, -1)
        so_far = taken.cumsum(-2).flatten(0, -2)  # [tokens, num_experts]
        return so_far.gather(-1, chosen) <= capacity

    def _with_shared(self, rows: Tensor, out: Tensor) -> Tensor:
        if self.shared is None:
            return out
        shared: Tensor = self.shared(rows)
        if self.shared_gate is not None:
            shared = shared * self.shared_gate(rows).sigmoid()
        return (out + shared) / 2 if self.spec.shared == "averaged" else out + shared

    @torch.no_grad()
    def after_step(self, *, updated: bool) -> None:
        """Update the selection bias, b_e += rate sign(mean load - load_e), and reset the load.

        The bias changes only if weights do. Wang et al., 2024, Auxiliary-Loss-Free Load Balancing, algorithm 1.
        """
        if updated and self.load is not None and self.selection_bias is not None:
            load = self.load.long()  # integers, for an exact comparison with the mean
            short = load.sum() - self.spec.num_experts * load
            self.selection_bias += self.spec.selection_bias_update_rate * short.sign()
        self.load = None

    def _auxiliary(self, logits: Tensor, sent_to: Tensor) -> RouterAuxLoss:
        """Return the terms of balance_loss * num_experts sum of f_e p_e + router_z_loss * mean of log² Z."""
        s = self.spec
        scores = self.routing.probabilities(logits)
        # No 0 / 0 if all sigmoids underflow.
        mean_score = (scores / (scores.sum(-1, keepdim=True) + 1e-20)).mean(0)
        share = sent_to.to(scores.dtype) / (len(logits) * s.top_k)
        z_loss = s.router_z_loss * logits.logsumexp(-1).square().mean()
        factor = s.balance_loss * s.num_experts
        return RouterAuxLoss(share, mean_score, factor, z_loss, s.balance_over == "model")

    def reset_parameters(self) -> None:
        if self.selection_bias is not None:
            nn.init.zeros_(self.selection_bias)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.spec.top_k} of {self.spec.num_experts}"


class GroupedExperts(nn.Module):
    """All experts of a layer, with one stack of matrices per map.

    Shapes: x [rows, dim], sorted by expert; `which` [rows], the expert of each row; `ends` [number], the end of each
    expert's rows.
    """

    def __init__(
        self,
        spec: spec.Hidden,
        dim: int,
        number: int,
        *,
        active_fraction: float,
    ) -> None:
        super().__init__()
        width = spec.width(dim)
        self.spec, self.activation = spec, _activation(spec)
        stack = partial(GroupedLinear, number, active_fraction=active_fraction)
        self.gate = stack(dim, width, bias=spec.bias.up) if spec.gated else None
        self.up = stack(dim, width, bias=spec.bias.up)
        self.down = stack(width, dim, bias=spec.bias.down, is_residual_output=True)
        self.norm: nn.Module = NORMS.make(spec.hidden_norm, width)

    def forward(
        self,
        x: Float[Tensor, "rows dim"],
        which: Int[Tensor, " rows"],
        ends: Int[Tensor, " number"],
    ) -> Float[Tensor, "rows dim"]:
        x = to_autocast_dtype(x)
        maps = [m for m in (self.gate, self.up) if m is not None]
        hidden = self.activation(*(m(x, which, ends) for m in maps))
        hidden = F.dropout(hidden, self.spec.dropout, self.training)
        down: Tensor = self.down(self.norm(hidden), which, ends)
        return down

    def extra_repr(self) -> str:
        return self.spec.kind


def rows_in_block(rows: int, number: int) -> int:
    """Return the block size for padding the rows of each expert on a CPU.

    It is a power of two, and padding adds at most a sixteenth of the rows. Without padding, oneDNN would compile and
    cache code for new numbers of rows in every training step.
    """
    most = min(MOST_IN_BLOCK, rows // (16 * number))
    return 1 << (most.bit_length() - 1) if most else 1


def _filled_up(
    which: Int[Tensor, " rows"], ends: Int[Tensor, " number"], block: int
) -> tuple[Int[Tensor, " more"], Int[Tensor, " rows"], Int[Tensor, " number"]]:
    """Pad the rows of each expert; return source rows [more], new positions [rows] and new ends [number].

    Padding repeats existing rows, with finite results and a gradient of 0. The last expert has all remaining padding,
    so that the number of padded rows is the same for any `ends`.
    """
    rows, number = len(which), len(ends)
    counts = ends.diff(prepend=ends.new_zeros(1))
    starts = ends - counts
    # At least the sum over experts of their rows, rounded up to multiples of `block`.
    more = -(-(rows + number * (block - 1)) // block) * block
    new_ends = ((counts + block - 1) // block * block).cumsum(0, dtype=ends.dtype)
    new_starts = F.pad(new_ends[:-1], (1, 0))
    new_ends = F.pad(new_ends[:-1], (0, 1), value=more)
    numbers = torch.arange(more, device=ends.device)
    expert = torch.searchsorted(new_ends, numbers, right=True)
    within = (numbers - new_starts[expert]).minimum(counts[expert] - 1)
    source = (starts[expert] + within).clamp(0, rows - 1)
    place = torch.arange(rows, device=ends.device) - starts[which] + new_starts[which]
    return source, place, new_ends


def _activation(hidden: spec.Hidden) -> Any:
    """Return the activation of a plain feed-forward, or the gate function of a gated one."""
    if isinstance(hidden, spec.Plain):
        return ACTIVATIONS.make(hidden)
    if isinstance(hidden, spec.Gated):
        return GATES.make(hidden)
    raise UserError(
        f'feedforward.expert.kind: found "{hidden.kind}", which is no function of hidden values; expected a '
        "subclass of Plain or Gated"
    )


class XIELU(nn.Module):
    """a_p x^2 + b x above 0, a_n (exp(x) - 1 - x) + b x below, a_p = softplus(positive) and
    a_n = b + softplus(negative).

    Shapes: positive and negative [1]. Computed in float32 or wider, as exp(x) - 1 - x is a small difference near 0.
    Huang and Schlag, 2025, Deriving Activation Functions Using Integration, eq. 14.
    """

    def __init__(self, spec: spec.XIELU) -> None:
        super().__init__()
        self.spec = spec
        self.positive = nn.Parameter(torch.empty(1))
        self.negative = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        x32 = upcast(x)
        above = F.softplus(self.positive) * x32.square()
        below = x32.clamp(max=0)  # no overflow of exp in the unused branch
        bent = (self.spec.beta + F.softplus(self.negative)) * (below.expm1() - below)
        return (torch.where(x32 > 0, above, bent) + self.spec.beta * x32).to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.positive, _softplus_inverse(self.spec.alpha_positive))
        negative = self.spec.alpha_negative - self.spec.beta
        nn.init.constant_(self.negative, _softplus_inverse(negative))


def _softplus_inverse(y: float) -> float:
    return y + math.log(-math.expm1(-y))


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)^2."""
    return F.relu(x).square()


def quick_gelu(x: Tensor, sharpness: float = 1.702) -> Tensor:
    """x sigmoid(sharpness x)."""
    return x * torch.sigmoid(sharpness * x)


def scaled_silu(x: Tensor, factor: float) -> Tensor:
    """silu(factor x)."""
    return F.silu(factor * x)


@dataclass(frozen=True)
class Multiplied:
    """f(g, u) = activation(g) * u."""

    activation: Activation

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        return self.activation(gate) * up


def clamped(gate: Tensor, up: Tensor, *, limit: float, sharpness: float = 1.702) -> Tensor:
    """f(g, u) = quick_gelu(min(g, limit)) * (max(-limit, min(u, limit)) + 1)."""
    return quick_gelu(gate.clamp(max=limit), sharpness) * (up.clamp(-limit, limit) + 1)


ACTIVATIONS = Registry(
    spec.Plain,
    "(spec)",
    Callable,
    {
        spec.ReLU: lambda s: F.relu,
        spec.GELU: lambda s: partial(F.gelu, approximate=s.approximate),
        spec.QuickGELU: lambda s: quick_gelu,
        spec.SiLU: lambda s: F.silu,
        spec.SquaredReLU: lambda s: squared_relu,
        spec.XIELU: XIELU,
    },
)
"""Elementwise functions f of plain feed-forwards, of the type `Activation`."""

GATES = Registry(
    spec.Gated,
    "(spec)",
    Callable,
    {
        spec.GLU: lambda s: Multiplied(torch.sigmoid),
        spec.Bilinear: lambda s: torch.mul,
        spec.ReGLU: lambda s: Multiplied(F.relu),
        spec.SquaredReGLU: lambda s: Multiplied(squared_relu),
        spec.GeGLU: lambda s: Multiplied(partial(F.gelu, approximate=s.approximate)),
        spec.SwiGLU: lambda s: Multiplied(
            F.silu if s.gate_multiplier == 1 else partial(scaled_silu, factor=s.gate_multiplier)
        ),
        spec.ClampedSwiGLU: lambda s: partial(clamped, limit=s.limit, sharpness=s.sharpness),
        spec.GEGELU: lambda s: partial(clamped, limit=s.limit),
    },
)
"""Elementwise functions f(gate, up) of gated feed-forwards."""

FEEDFORWARDS = Registry(
    spec.FeedForward,
    "(spec, dim) or, of a spec that is a Mixer, (spec, dim, layer)",
    Branch,
    {
        spec.Plain: Plain,
        spec.Gated: Gated,
        spec.Experts: Experts,
        spec.ChannelMix: ChannelMix,
    },
)
"""Subclasses of `Branch`: y = f(x), independently for each token."""
