"""Text drawings of a layer: its branches and the residual stream."""

from collections.abc import Collection

from archwright.spec.model_spec import LayerSpec
from archwright.spec.residuals import Groups, PerBranch, Residual

NAMES = {"feedforward": "feed-forward", "cross_attention": "cross-attention"}
"""Displayed names of branches, if they differ from the field names."""


def diagram(layer: LayerSpec, norm: str) -> list[str]:
    """Return the lines of a drawing, read from left to right.

    A residual without a `flow` is described by its docstring. `norm` is the displayed name of the norm.
    """
    residual, groups = layer.residual, layer.groups
    if not residual.flow:
        return [(type(residual).__doc__ or residual.kind).split("\n\n")[0].strip()]
    norm = "" if layer.norm.is_none else norm
    first = ["x = a x + b x0, with x0 the embedding; then"] if residual.embedding_skip else []
    at_once = residual.at_once and len(groups) > 1
    drawn = _side_by_side if at_once else _one_after_another
    last = []
    if residual.layer_embedding != "none":
        last += ["then x = x + norm(out(GELU(gate(x)) * e)), with an embedding e of the layer"]
    if residual.layer_scalar:
        last += ["then x = s x"]
    return [*first, *drawn(residual, groups, norm), *last]


def _one_after_another(residual: Residual, groups: Groups, norm: str) -> list[str]:
    """Draw groups in sequence, with the residual stream below the branches."""
    above, below = "x ─", "   "
    for name, branches in groups.items():
        split, several = 0, len(branches) > 1
        label = "" if getattr(residual, "skip_norm", "none") == name else norm
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
                label += " each" if label and several and "norm +" in residual.flow else ""
            elif label:
                above += f" {label} ─"
        below = below.ljust(len(above))
    return [f"{above} x", below.rstrip()]


def _side_by_side(residual: Residual, groups: Groups, norm: str) -> list[str]:
    """Draw groups that run in parallel: one line per group, between fork and sum."""
    one_norm = norm and getattr(residual, "num_norms", 2) == 1
    shared = f" {norm} ─┬─" if one_norm else ""
    steps = [s for s in residual.flow.split() if s not in "<+" and not (one_norm and s == "norm")]
    paths = []
    for name, branches in groups.items():
        nodes = [norm if step == "norm" else _sum(residual, branches) for step in steps]
        path = " " + " ─ ".join(filter(None, nodes)) + " ─"
        paths.append(path + (_times(residual, "multiplier", name) if len(branches) == 1 else ""))
    width = max(map(len, paths))
    first, *rest = (path.ljust(width, "─") for path in paths)
    lines = [f"x ─┬─{shared}{first} + ─ x"]
    for path in rest:
        last = path is rest[-1]
        start = f"   │ {' ' * (len(shared) - 2)}{'└' if last else '├'}─" if one_norm else "   ├─"
        lines.append(f"{start}{path}─┤")
    lines.append(f"   └{'─' * (len(lines[0]) - 9)}┘")
    return lines


def _sum(residual: Residual, branches: Collection[str]) -> str:
    """Return a group's branch, or the sum of its branches in parentheses."""
    if len(branches) == 1:
        return "".join(NAMES.get(name, name) for name in branches)
    times = (_times(residual, "multiplier", name).strip("─ ") for name in branches)
    terms = (f"{NAMES.get(f, f)} {by}".strip() for f, by in zip(branches, times, strict=True))
    return f"({' + '.join(terms)})"


def _times(residual: Residual, field: str, name: str) -> str:
    """Return the factor of a branch or stream, unless it is 1."""
    number = getattr(residual, field, 1.0)
    if isinstance(number, PerBranch):
        number = number[name]
    return "" if number == 1 else f" × {number:.4g} ─"
