"""Drawings are of what layers compute: the flow they are drawn from gives the numbers of the built wiring."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from archwright.catalogue.diagram import diagram
from archwright.parts.branch import Branch
from archwright.parts.residuals import RESIDUALS, Wired
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.spec.residuals import PerBranch, Residual
from tests.parts.test_residuals import place


class Bare(Branch):
    """A branch without maps."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


BRANCHES = {"attention": Wired(Bare(torch.sin)), "feedforward": Wired(Bare(torch.cos))}


class Shift(nn.Module):
    """Stands for a norm: each one does something of its own."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Shift.made += 1
        self.by = Shift.made

    def forward(self, x: Tensor) -> Tensor:
        return 0.9 * x + self.by


def modern(*changes: str) -> ModelSpec:
    return load("modern").override("num_layers=3", *changes).resolved()


DRAWN = [kind for kind, cls in Residual.kinds.items() if cls.flow]
"""Wirings of one stream; others are shown as a formula."""


@pytest.mark.parametrize("kind", DRAWN)
def test_a_flow_gives_the_numbers_of_its_wiring(kind: str) -> None:
    changes = ["residual.multiplier.attention=0.3", "residual.multiplier.feedforward=0.7"]
    spec = modern(f"residual.kind={kind}", *changes).residual
    groups = {name: {name: branch} for name, branch in BRANCHES.items()}
    part = RESIDUALS[type(spec)](spec, 3, place(Shift), groups).eval()
    x = torch.linspace(-1, 1, 6).view(1, 2, 3)
    assert torch.allclose(followed(spec, part, x), part(x, groups))


def followed(spec: Residual, part: nn.Module, x: Tensor) -> Tensor:
    """Walk the flow of every branch, from one x where they start at once."""
    start, added = x, []
    for name, branch in BRANCHES.items():
        x = start if spec.at_once else x
        kept, norms = x, norms_of(part, name)
        for step in spec.flow.split():
            if step == "<":
                kept = x
            elif step == "f":
                x = branch(x)
            elif step == "norm":
                x = norms.pop(0)(x)
            else:
                x = kept * times(spec, "alpha", name) + x * times(spec, "multiplier", name)
        added.append(x - start)
    return start + sum(added) if spec.at_once else x


def norms_of(part: nn.Module, name: str) -> list[nn.Module]:
    """Return the norms that a branch meets, in their order."""
    tables = [getattr(part, table, {}) for table in ("norms", "out_norms")]
    return [table[key] for table in tables for key in (name, "shared") if key in table]


def times(spec: Residual, field: str, name: str) -> float:
    number = getattr(spec, field, 1.0)
    return number[name] if isinstance(number, PerBranch) else float(number)


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("left_out", ["", "attention", "feedforward"])
def test_a_drawing_has_every_branch_and_norm_and_its_corners_meet(kind: str, left_out: str) -> None:
    spec = modern(f"residual.kind={kind}", *([f"{left_out}.kind=none"] if left_out else []))
    lines = diagram(spec, "RMSNorm")
    text = "\n".join(lines)
    for branch, name in {"attention": "attention", "feedforward": "feed-forward"}.items():
        assert text.count(name) == (branch != left_out)
    several = 1 if left_out or kind == "parallel" else 2  # of which parallel branches share one
    norms = spec.residual.flow.count("norm") * several
    assert text.count("RMSNorm") == norms
    for number, line in enumerate(lines):
        for at, sign in enumerate(line):
            if sign in "└┘├┤":
                assert lines[number - 1][at] in "┬├┤+│", f"nothing above column {at}:\n{text}"


def test_two_streams_are_a_formula() -> None:
    (line,) = diagram(modern("residual.kind=reversible"), "RMSNorm")
    assert line.startswith("x1, x2 = x2, x1 + f(norm(x2))")


def test_two_norms_side_by_side_and_no_norms() -> None:
    two = diagram(modern("residual.kind=parallel", "residual.num_norms=2"), "RMSNorm")
    assert [line.count("RMSNorm") for line in two] == [1, 1, 0]
    assert "RMSNorm" not in "".join(diagram(modern("norm.kind=none"), "RMSNorm"))
    skip_norm = diagram(modern("residual.skip_norm=attention"), "RMSNorm")[0]
    assert (
        skip_norm.index("attention") < skip_norm.index("RMSNorm") < skip_norm.index("feed-forward")
    )
    skip = diagram(modern("residual.embedding_skip=true"), "RMSNorm")
    assert skip == ["x = a x + b x0, with x0 the embedding; then", *diagram(modern(), "RMSNorm")]
    assert "× 0.5" in diagram(modern("residual.multiplier=0.5"), "RMSNorm")[0]
