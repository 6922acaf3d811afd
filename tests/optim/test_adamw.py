"""AdamW beside torch's and beside its formula."""

import pytest
import torch

from archwright.optim import AdamW

SETTINGS = {
    "usual": {},
    "all": {"lr": 0.1, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.3},
    "fused": {"lr": 0.1, "fused": True},
}


def weights() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))


def gradients(number: int = 7) -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(1)
    return [torch.randn(5, 3, generator=dice) for _ in range(number)]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_it_is_torchs_to_the_last_bit(settings: dict[str, object]) -> None:
    ours, theirs = weights(), weights()
    own, other = AdamW([ours], **settings), torch.optim.AdamW([theirs], **settings)  # type: ignore[arg-type]
    for gradient in gradients():
        for parameter, optimizer in ((ours, own), (theirs, other)):
            parameter.grad = gradient.clone()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(ours, theirs)
    assert ours.grad is None
    assert own.state_dict()["state"].keys() == other.state_dict()["state"].keys()
    other.load_state_dict(own.state_dict())
    assert isinstance(own, torch.optim.AdamW)


def test_formula() -> None:
    lr, (b1, b2), eps, decay = 0.1, (0.8, 0.99), 1e-3, 0.3
    parameter = torch.nn.Parameter(weights().detach().double())
    optimizer = AdamW([parameter], lr=lr, betas=(b1, b2), eps=eps, weight_decay=decay)
    w = parameter.detach().clone()
    m = v = torch.zeros_like(w)
    for t, g in enumerate((g.double() for g in gradients()), start=1):
        parameter.grad = g.clone()
        optimizer.step()
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        w = (1 - lr * decay) * w - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
        torch.testing.assert_close(parameter.detach(), w, rtol=1e-12, atol=1e-12)
