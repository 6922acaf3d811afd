"""A layer drawn in text: how its branches join the stream, from the residual's flow."""

from collections.abc import Collection

from archwright.spec.model_spec import LayerSpec
from archwright.spec.residuals import Groups, PerBranch, Residual

NAMES = {"feedforward": "feed-forward", "cross_attention": "cross-attention"}
"""Names of branches in drawings, where they differ from the fields' own."""


def diagram(layer: LayerSpec, norm: str) -> list[str]:
    """Return the lines of a drawing, from x on the left to x on the right; `norm` is what a norm is called.

    A wiring that joined from outside without a flow is shown by its docstring.
    """
    residual, groups = layer.residual, layer.groups
    if not residual.flow:
        return [(type(residual).__doc__ or residual.kind).split("\n\n")[0].strip()]
    norm = "" if layer.norm.is_none else norm
    first = ["x = a x + b x0, with x0 the embedding; then"] if residual.embedding_skip else []
    at_once = residual.at_once and len(groups) > 1
    drawn = _side_by_side if at_once else _one_after_another
    return [*first, *drawn(residual, groups, norm)]


def _one_after_another(residual: Residual, groups: Groups, norm: str) -> list[str]:
    """Draw each group of branches above the stream that is kept aside for it."""
    above, below = "x ─", "   "
    for name, branches in groups.items():
        split, several = 0, len(branches) > 1
        own = "" if getattr(residual, "skip_norm", "none") == name else norm
        for step in residual.flow.split():
            if step == "<":
                split = len(above)
                above += "┬─"
            elif step == "+":
                above += ("" if several else _times(residual, "multiplier", name)) + " + "
                line = _times(residual, "alpha", name).strip("─ ")
                width = len(above) - 2 - split - 1
                below = (
                    below.ljust(split)
                    + "└"
                    + (f" {line} " if line else "").center(width, "─")
                    + "┘"
                )
                above += "─"
            elif step == "f":
                above += f" {_sum(residual, branches)} ─"
                own = f"{own} each" if own and several and "norm +" in residual.flow else own
            elif own:
                above += f" {own} ─"
        below = below.ljust(len(above))
    return [f"{above} x", below.rstrip()]


def _side_by_side(residual: Residual, groups: Groups, norm: str) -> list[str]:
    """Draw groups of branches below each other, between the point that all start from and the one where they meet."""
    one_norm = norm and getattr(residual, "num_norms", 2) == 1
    shared = f" {norm} ─┬─" if one_norm else ""
    steps = [s for s in residual.flow.split() if s not in "<+" and not (one_norm and s == "norm")]
    paths = []
    for name, branches in groups.items():
        nodes = [norm if step == "norm" else _sum(residual, branches) for step in steps]
        path = " " + " ─ ".join(filter(None, nodes)) + " ─"
        paths.append(path + (_times(residual, "multiplier", name) if len(branches) == 1 else ""))
    width = max(map(len, paths))
    first, *others = (path.ljust(width, "─") for path in paths)
    lines = [f"x ─┬─{shared}{first} + ─ x"]
    for path in others:
        last = path is others[-1]
        start = f"   │ {' ' * (len(shared) - 2)}{'└' if last else '├'}─" if one_norm else "   ├─"
        lines.append(f"{start}{path}─┤")
    lines.append(f"   └{'─' * (len(lines[0]) - 9)}┘")
    return lines


def _sum(residual: Residual, branches: Collection[str]) -> str:
    """Return the branches of a group: its one branch, or a sum in brackets."""
    if len(branches) == 1:
        return "".join(NAMES.get(name, name) for name in branches)
    times = (_times(residual, "multiplier", name).strip("─ ") for name in branches)
    terms = (f"{NAMES.get(f, f)} {by}".strip() for f, by in zip(branches, times, strict=True))
    return f"({' + '.join(terms)})"


def _times(residual: Residual, field: str, name: str) -> str:
    """Return a number that something is multiplied by on its way, unless it is 1."""
    number = getattr(residual, field, 1.0)
    if isinstance(number, PerBranch):
        number = number[name]
    return "" if number == 1 else f" × {number:.4g} ─"
