"""Routers: from router logits to the experts of each token and their weights."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.registry import Registry
from archwright.spec import feedforward as spec

Scores = Float[Tensor, "tokens num_experts"]
"""One number per token and expert."""
Bias = Float[Tensor, " num_experts"]
Routes = tuple[Int[Tensor, "tokens top_k"], Float[Tensor, "tokens top_k"]]
"""Chosen experts of each token, and their weights."""


class Router:
    """Base of routers: the top_k experts by the softmax of their logits.

    Args:
        experts: spec of the mixture of experts.
    """

    def __init__(self, spec: Any, experts: spec.Experts) -> None:
        self.spec, self.experts = spec, experts

    def scores(self, logits: Scores) -> Scores:
        """Return the score of each expert, an increasing function of its logit."""
        return logits.softmax(-1)

    def probabilities(self, logits: Scores) -> Scores:
        """Return scores for the balance loss, which divides them by their sum per token."""
        return logits.softmax(-1)

    def choose(self, logits: Scores, selection_bias: Bias | None, *, training: bool) -> Routes:
        """Return the top_k experts by score, and their weights before normalisation."""
        scores = self.scores(logits)
        ranks = scores if selection_bias is None else scores + selection_bias
        if selection_bias is None and (
            self.experts.num_groups == 1 or self.experts.group_score == "max"
        ):
            # Logits have the same order as scores, but do not saturate at 0 or 1.
            ranks = logits
        best = _in_best_groups(self.experts, ranks).topk(self.experts.top_k, sorted=False)
        return best.indices, scores.gather(-1, best.indices)

    def __call__(
        self, logits: Scores, selection_bias: Bias | None = None, *, training: bool = False
    ) -> Routes:
        """Return the chosen experts of each token, and their weights."""
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
    """Experts chosen one after another by `sparsemixer`; sampled in training."""

    def choose(self, logits: Scores, selection_bias: Bias | None, *, training: bool) -> Routes:
        return sparsemixer(logits, self.experts.top_k, self.experts.jitter, training=training)


def sparsemixer(logits: Scores, top_k: int, jitter: float, *, training: bool) -> Routes:
    """Choose experts one after another, each weighted among its close competitors.

    Let m be the largest logit s of the experts not chosen yet. Competitors have (m - s) / max(|s|, m) <= 2 jitter; the
    weight is the softmax over competitors. In training, the expert is sampled from this softmax. If it is not the best,
    its weight is divided by 3 with probability 3/4, but the gradient remains the gradient of the softmax (Heun's
    third-order rule). Liu et al., 2024, GRIN, sections 2.2 and 2.3; Phi-3.5-MoE.
    """
    chosen, weights = [], []
    left = logits
    for _ in range(top_k):
        best, index = left.detach().max(-1, keepdim=True)
        far = (best - logits.detach()) / torch.maximum(logits.detach().abs(), best) > 2 * jitter
        near = left.masked_fill(far, -math.inf)
        if training:
            # Gumbel-max trick: the argmax of s - log Exp(1) is a sample of the softmax.
            noise = torch.empty_like(near).exponential_().log()
            index = (near.detach() - noise).argmax(-1, keepdim=True)
        shares = near.softmax(-1)
        weight = shares.gather(-1, index)
        if training:
            undivided = (index == shares.argmax(-1, keepdim=True)) | (
                torch.rand_like(weight) > 0.75
            )
            weight = weight + (weight * torch.where(undivided, 0.0, -2 / 3)).detach()
        chosen.append(index)
        weights.append(weight)
        left = left.scatter(-1, index, -math.inf)
    return torch.cat(chosen, -1), torch.cat(weights, -1)


def _in_best_groups(spec: spec.Experts, ranks: Tensor) -> Tensor:
    """Set the scores of experts outside the best groups to -inf."""
    if spec.num_groups == 1:
        return ranks
    # [tokens, num_groups, experts of a group]
    grouped: Tensor = ranks.unflatten(-1, (spec.num_groups, -1))
    best = grouped.amax(-1) if spec.group_score == "max" else grouped.topk(2).values.sum(-1)
    # [tokens, num_groups]
    in_best = torch.zeros_like(best, dtype=torch.bool)
    in_best = in_best.scatter(-1, best.topk(spec.top_groups, sorted=False).indices, True)
    # [tokens, num_experts]
    return grouped.masked_fill(~in_best[..., None], -math.inf).flatten(-2)


def _size(spec: spec.Experts, weights: Tensor) -> Tensor:
    """Return the p-norm of the chosen experts' weights plus eps, at least `normalize_min`."""
    if spec.normalize_power == 1:
        size = weights.sum(-1, keepdim=True)
    else:
        size = torch.linalg.vector_norm(weights, spec.normalize_power, dim=-1, keepdim=True)
    size = size + spec.normalize_eps  # no 0 / 0 if all sigmoids underflow
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
"""Subclasses of `Router`, called with their spec and the spec of the mixture."""
