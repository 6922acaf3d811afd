"""How a router's numbers say which experts a token goes through, and with what weights."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.registry import Registry
from archwright.spec import feedforward as spec

Scores = Float[Tensor, "tokens num_experts"]
"""A number of each expert for each token."""
Bias = Float[Tensor, " num_experts"]
Routes = tuple[Int[Tensor, "tokens top_k"], Float[Tensor, "tokens top_k"]]
"""The experts that each token goes through, and their weights."""


class Router:
    """Which experts a token goes through, and with what weights: what all routings have; here, by a softmax.

    Args:
        experts: the mixture that is routed to.
    """

    def __init__(self, spec: Any, experts: spec.Experts) -> None:
        self.spec, self.experts = spec, experts

    def scores(self, logits: Scores) -> Scores:
        """Return what experts are weighed by, which grows with their logits."""
        return logits.softmax(-1)

    def probabilities(self, logits: Scores) -> Scores:
        """Return what a balance loss takes the mean of, once it adds up to 1 for each token."""
        return logits.softmax(-1)

    def choose(self, logits: Scores, selection_bias: Bias | None, *, training: bool) -> Routes:
        """Return the best experts by score, and their weights before these are normalised."""
        scores = self.scores(logits)
        ranks = scores if selection_bias is None else scores + selection_bias
        if selection_bias is None and (
            self.experts.num_groups == 1 or self.experts.group_score == "max"
        ):
            # Scores grow with their logits, which do not round to 0 or 1 and so rank what scores cannot.
            ranks = logits
        best = _in_best_groups(self.experts, ranks).topk(self.experts.top_k, sorted=False)
        return best.indices, scores.gather(-1, best.indices)

    def __call__(
        self, logits: Scores, selection_bias: Bias | None = None, *, training: bool = False
    ) -> Routes:
        """Return the experts that each token goes through, and their weights."""
        chosen, weights = self.choose(logits, selection_bias, training=training)
        if self.experts.normalize_weights:
            weights = weights / _size(self.experts, weights)
        return chosen, weights


class SoftmaxOfChosen(Router):
    """A softmax over the chosen experts."""

    def scores(self, logits: Scores) -> Scores:
        return logits

    def choose(self, logits: Scores, selection_bias: Bias | None, *, training: bool) -> Routes:
        chosen, weights = super().choose(logits, selection_bias, training=training)
        return chosen, weights.softmax(-1)


class Sigmoid(Router):
    """A sigmoid of each expert's logit."""

    def scores(self, logits: Scores) -> Scores:
        return torch.sigmoid(logits)

    def probabilities(self, logits: Scores) -> Scores:
        return logits.sigmoid()


class SparseMixer(Router):
    """One expert after the other, by `sparsemixer`; drawn in training."""

    def choose(self, logits: Scores, selection_bias: Bias | None, *, training: bool) -> Routes:
        return sparsemixer(logits, self.experts.top_k, self.experts.jitter, training=training)


def sparsemixer(logits: Scores, top_k: int, jitter: float, *, training: bool) -> Routes:
    """Return experts one after the other, each with its weight among those that come near the best.

    With m the largest logit of experts not chosen yet, those near it have (m - s) / max(|s|, m) <= 2 jitter;
    a weight is the softmax over them. In training experts are drawn from that softmax, and the weight of one
    that is not the best counts a third in three of four cases, while its gradient stays that of the softmax
    (Heun's third-order rule). Liu et al., 2024, GRIN, sections 2.2 and 2.3; Phi-3.5-MoE.
    """
    chosen, weights = [], []
    left = logits
    for _ in range(top_k):
        best, index = left.detach().max(-1, keepdim=True)
        far = (best - logits.detach()) / torch.maximum(logits.detach().abs(), best) > 2 * jitter
        near = left.masked_fill(far, -math.inf)
        if training:
            noise = torch.empty_like(near).exponential_().log()
            index = (near.detach() - noise).argmax(-1, keepdim=True)
        shares = near.softmax(-1)
        weight = shares.gather(-1, index)
        if training:
            whole = (index == shares.argmax(-1, keepdim=True)) | (torch.rand_like(weight) > 0.75)
            weight = weight + (weight * torch.where(whole, 0.0, -2 / 3)).detach()
        chosen.append(index)
        weights.append(weight)
        left = left.scatter(-1, index, -math.inf)
    return torch.cat(chosen, -1), torch.cat(weights, -1)


def _in_best_groups(spec: spec.Experts, ranks: Tensor) -> Tensor:
    """Hide experts out of groups that are not among the best."""
    if spec.num_groups == 1:
        return ranks
    # [tokens, num_groups, experts of a group]
    grouped: Tensor = ranks.unflatten(-1, (spec.num_groups, -1))
    best = grouped.amax(-1) if spec.group_score == "max" else grouped.topk(2).values.sum(-1)
    kept = torch.zeros_like(best, dtype=torch.bool)
    kept = kept.scatter(-1, best.topk(spec.top_groups, sorted=False).indices, True)
    # [tokens, num_experts]
    return grouped.masked_fill(~kept[..., None], -math.inf).flatten(-2)


def _size(spec: spec.Experts, weights: Tensor) -> Tensor:
    """Return what the weights of the chosen experts are divided by."""
    if spec.normalize_power == 1:
        size = weights.sum(-1, keepdim=True) + 1e-20  # no 0 / 0 where all sigmoids underflow
    else:
        size = torch.linalg.vector_norm(weights, spec.normalize_power, dim=-1, keepdim=True)
    return size.clamp(min=spec.normalize_min) if spec.normalize_min else size


ROUTINGS = Registry(
    spec.Routing,
    "(spec, experts)",
    Router,
    {
        spec.SoftmaxRouting: Router,
        spec.SoftmaxOfChosen: SoftmaxOfChosen,
        spec.SigmoidRouting: Sigmoid,
        spec.SparseMixer: SparseMixer,
    },
)
"""Below `Router`, which says what each may change; made of the spec of the mixture, too."""
