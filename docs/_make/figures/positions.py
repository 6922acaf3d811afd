"""Figures of the page on positions."""

import math

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from archwright.parts.positions import Rotary, Rotation, Sinusoidal
from archwright.parts.positions.relative import alibi_slopes
from archwright.parts.token_layout import TokenLayout
from archwright.spec import positions as spec

DIM = 64


def positions_sinusoids() -> Figure:
    """Table of sinusoids, and the map from i to i + 7 in the plane of one pair."""
    layout = TokenLayout(128, torch.device("cpu"))
    table = Sinusoidal(spec.Sinusoidal(), DIM, 128)(layout)[0]
    figure, (left, right) = plt.subplots(1, 2, width_ratios=(2, 1))
    left.imshow(
        table.T.numpy(), aspect="auto", cmap="coolwarm", interpolation="nearest", rasterized=True
    )
    left.set(xlabel="position", ylabel="coordinate", title="table of sinusoids")
    left.grid(visible=False)

    delta, pair = 7, 5
    turn = torch.linspace(0, 2 * math.pi, 61)
    right.plot(turn.cos(), turn.sin(), color="#808080", linewidth=0.8)
    for number, i in enumerate((0, 3, 9)):
        x, y = table[:, 2 * pair], table[:, 2 * pair + 1]
        right.annotate(
            "",
            (x[i + delta], y[i + delta]),
            (x[i], y[i]),
            arrowprops={"arrowstyle": "->", "color": f"C{number}", "linewidth": 1.5},
        )
        right.plot(x[i], y[i], "o", color=f"C{number}", label=f"{i} to {i + delta}")
    right.set(
        xlabel=f"coordinate {2 * pair} (sine)",
        ylabel=f"coordinate {2 * pair + 1} (cosine)",
        title="7 tokens later",
        aspect="equal",
    )
    right.legend(loc="center", title="position")
    return figure


def positions_rope() -> Figure:
    """Angles of two pairs at the same distance, and scores against distance."""
    figure, (left, right) = plt.subplots(1, 2, width_ratios=(1, 2))
    _angles(left)
    torch.manual_seed(0)
    distances = torch.unique(torch.logspace(0, 3.5, 120).long())
    q, k = torch.randn(2, 1000, DIM)
    rotary = Rotary(spec.RoPE(), DIM)
    for name, keys in (("k = q", q), ("k independent of q", k)):
        scores = _scores(rotary, q, keys, distances)
        mean, deviation = scores.mean(0), scores.std(0)
        (line,) = right.plot(distances, mean, label=f"{name}: mean")
        right.fill_between(
            distances,
            mean - deviation,
            mean + deviation,
            alpha=0.2,
            color=line.get_color(),
            linewidth=0,
        )
    right.set(
        xscale="log",
        xlabel="distance in tokens",
        ylabel="q · k, d = 64",
        title="mean and standard deviation",
    )
    right.legend()
    return figure


def _angles(axes: Axes) -> None:
    """Draw a query and a key of two coordinates at positions (4, 1) and (10, 7), turned by 0.35 per token."""
    rotary = Rotary(spec.RoPE(), 2)
    q, k, speed = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.7]), 0.35
    for number, (m, n) in enumerate(((4, 1), (10, 7))):
        for vector, at, name in ((q, m, "q"), (k, n, "k")):
            angle = torch.tensor(speed * at)
            cos, sin = angle.cos().expand(2), torch.stack((-angle.sin(), angle.sin()))
            rotation = Rotation(cos.view(1, 1, 1, 2), sin.view(1, 1, 1, 2))
            x, y = rotary.rotate(vector.view(1, 1, 1, 2), rotation).flatten().tolist()
            axes.annotate(
                "",
                (x, y),
                (0, 0),
                arrowprops={"arrowstyle": "->", "color": f"C{number}", "linewidth": 1.5},
            )
            axes.text(1.2 * x, 1.2 * y, f"{name} at {at}", ha="center", va="center")
        axes.plot([], [], color=f"C{number}", label=f"m = {m}, n = {n}")
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", title="equal angles")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.35), fontsize=9)


def _scores(rotary: Rotary, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
    """Return q · R k for each pair of vectors and each distance."""
    keys = k[:, None, None].expand(-1, len(distances), 1, -1)
    # Only the difference of positions matters: queries are at position 0.
    turned = rotary.rotate(keys, rotary(distances[None]))[:, :, 0]
    return torch.einsum("bd,bnd->bn", q, turned)


def positions_biases() -> Figure:
    """Factor of a key's weight by ALiBi in each of 8 heads, by distance."""
    figure, axes = plt.subplots()
    distances = torch.unique(torch.logspace(0, 3.5, 60).long())
    for number, slope in enumerate(alibi_slopes(8).tolist()):
        axes.plot(
            distances,
            torch.exp(-slope * distances),
            color=f"C{number % 6}",
            linestyle="--" if number > 5 else "-",
            label=f"1/{round(1 / slope)}",
        )
    axes.set(xscale="log", xlabel="distance in tokens", ylabel="factor of a key's weight")
    axes.legend(title="slope", ncols=2)
    return figure
