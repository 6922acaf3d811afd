"""SparseMixer in training: choices, weights and gradients of the published implementation."""

import pytest
import torch
from torch import Tensor

from archwright.parts.routing import sparsemixer

EXPERTS = 6


class TestSparsemixerInTraining:
    """Experts are drawn; the library draws in the same order, so that one seed tells both the same."""

    def both(self, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        library = pytest.importorskip("transformers.models.phimoe.modeling_phimoe")
        dice = torch.Generator().manual_seed(seed)
        start, slope = torch.randn(2000, EXPERTS, generator=dice), torch.randn(2000, 2)
        found = []
        for ours in (True, False):
            logits = start.clone().requires_grad_()
            torch.manual_seed(seed)
            if ours:
                chosen, weights = sparsemixer(logits, 2, 0.3, training=True)
            else:
                weights, chosen = library.sparsemixer(logits, 0.3, True)
            weights.backward(slope)
            found.append((chosen, weights.detach(), logits.grad))
        return found

    def test_choices_weights_and_gradients(self) -> None:
        (chosen, weights, gradient), theirs = self.both(3)
        assert torch.equal(chosen, theirs[0])
        torch.testing.assert_close(weights[:, 0], theirs[1][:, 0], rtol=1e-3, atol=0)
        torch.testing.assert_close(gradient, theirs[2], rtol=1e-4, atol=1e-5)
        # The library draws once more before the second weight's third, so those differ.
        ratio = weights[:, 1] / theirs[1][:, 1]
        same = [torch.isclose(ratio, torch.tensor(r), rtol=1e-3) for r in (1.0, 3.0, 1 / 3)]
        assert torch.stack(same).any(0).all()
        assert all(some.any() for some in same)

    def test_the_best_is_drawn_by_its_share_and_others_count_a_third_in_three_of_four(self) -> None:
        logits = torch.tensor([[1.0, 0.6, 0.9, -3.0]]).expand(40_000, 4)
        chosen, weights = sparsemixer(logits, 1, 0.3, training=True)
        near = logits[0, :3].softmax(-1)
        found = chosen.flatten().bincount(minlength=4) / 40_000
        torch.testing.assert_close(found[:3], near, rtol=0, atol=0.01)
        assert found[3] == 0
        of_second = weights[chosen == 1]
        thirds = of_second < 0.5 * near[1]
        assert thirds.double().mean().item() == pytest.approx(0.75, abs=0.02)
        assert of_second[thirds].unique().item() == pytest.approx(near[1].item() / 3, rel=1e-5)
        assert weights[chosen == 0].unique().item() == pytest.approx(near[0].item(), rel=1e-5)
