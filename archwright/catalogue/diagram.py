"""A layer drawn in text: how its branches join the stream, from the residual's flow."""

from archwright.spec.model_spec import LayerSpec
from archwright.spec.residuals import PerBranch, Residual

BRANCHES = {"attention": "attention", "feedforward": "feed-forward"}
"""The branches of a layer in their order, and what drawings call them."""


def diagram(layer: LayerSpec, norm: str) -> list[str]:
    """Return the lines of a drawing, from x on the left to x on the right; `norm` is what a norm is called.

    A wiring that joined from outside without a flow is told by its docstring.
    """
    residual = layer.residual
    branches = [name for name in BRANCHES if getattr(layer, name).kind != "none"]
    if not residual.flow:
        return [(type(residual).__doc__ or residual.kind).split("\n\n")[0].strip()]
    norm = "" if layer.norm.is_none else norm
    if residual.at_once and len(branches) > 1:
        return _side_by_side(residual, branches, norm)
    return _one_after_another(residual, branches, norm)


def _one_after_another(residual: Residual, branches: list[str], norm: str) -> list[str]:
    """Draw each branch above the stream that is kept aside for it."""
    above, below = "x ─", "   "
    for name in branches:
        split = 0
        own = "" if getattr(residual, "skip_norm", "none") == name else norm
        for step in residual.flow.split():
            if step == "<":
                split = len(above)
                above += "┬─"
            elif step == "+":
                above += _times(residual, "multiplier", name) + " + "
                line = _times(residual, "alpha", name).strip("─ ")
                width = len(above) - 2 - split - 1
                below = (
                    below.ljust(split)
                    + "└"
                    + (f" {line} " if line else "").center(width, "─")
                    + "┘"
                )
                above += "─"
            elif nodes := _node(step, name, own):
                above += f" {nodes} ─"
        below = below.ljust(len(above))
    return [f"{above} x", below.rstrip()]


def _side_by_side(residual: Residual, branches: list[str], norm: str) -> list[str]:
    """Draw branches below each other, between the point that all start from and the one where they meet."""
    one_norm = norm and getattr(residual, "num_norms", 2) == 1
    shared = f" {norm} ─┬─" if one_norm else ""
    steps = [s for s in residual.flow.split() if s not in "<+" and not (one_norm and s == "norm")]
    paths = []
    for name in branches:
        nodes = [_node(step, name, norm) for step in steps]
        path = " " + " ─ ".join(filter(None, nodes)) + " ─"
        paths.append(path + _times(residual, "multiplier", name))
    width = max(map(len, paths))
    first, *others = (path.ljust(width, "─") for path in paths)
    lines = [f"x ─┬─{shared}{first} + ─ x"]
    for path in others:
        last = path is others[-1]
        start = f"   │ {' ' * (len(shared) - 2)}{'└' if last else '├'}─" if one_norm else "   ├─"
        lines.append(f"{start}{path}─┤")
    lines.append(f"   └{'─' * (len(lines[0]) - 9)}┘")
    return lines


def _node(step: str, name: str, norm: str) -> str:
    return norm if step == "norm" else BRANCHES[name]


def _times(residual: Residual, field: str, name: str) -> str:
    """Return a number that something is multiplied by on its way, unless it is 1."""
    number = getattr(residual, field, 1.0)
    if isinstance(number, PerBranch):
        number = number[name]
    return "" if number == 1 else f" × {number:.4g} ─"
