"""Figures of docs/course/stability.md."""

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from archwright.losses import cross_entropy
from archwright.parts.kernels.scores import ScoreMods

CAP = 50.0


def softcap_and_z_loss() -> Figure:
    """Draw value and slope of a soft-cap, and the z-loss beside the cross-entropy over a common shift of logits."""
    figure, (cap, loss) = plt.subplots(1, 2)
    x = torch.linspace(-200, 200, 81, requires_grad=True)
    y = ScoreMods(scale=1.0, softcap=CAP).scores(x[None, None, None], None, None).flatten()
    (slope,) = torch.autograd.grad(y.sum(), x)
    cap.plot(x.detach(), y.detach(), label="50 tanh(x / 50)")
    cap.plot(x.detach(), CAP * slope, linestyle="--", label="50 times its slope")
    cap.set(
        xlabel="score x before the cap", ylabel="after the cap", xlim=(-200, 200), ylim=(-75, 55)
    )
    cap.legend(loc="lower right")

    vocab, target = 4096, torch.tensor([0])
    shifts = torch.linspace(-100, 100, 81)
    for weight in (0.0, 1e-4, 1e-3):
        values = [
            cross_entropy(torch.zeros(1, vocab) + shift, target, z_loss=weight).total.item()
            for shift in shifts.tolist()
        ]
        log_z = shifts + torch.tensor(float(vocab)).log()
        loss.plot(log_z, values, label=f"z-loss {weight:g}")
    loss.set(xlabel="log Z", ylabel="loss, nats", ylim=(8, 14))
    loss.legend(loc="upper center")
    return figure
