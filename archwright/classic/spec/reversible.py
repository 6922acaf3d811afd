"""Reversible layers."""

from typing import ClassVar, Literal

from archwright.spec.residuals import Residual


class Reversible(Residual):
    """x1, x2 = x2, x1 + f(norm(x2)): two alternating streams, both initially the embedding.

    The backward pass needs no stored activations of a layer: its output contains x2, and x1 is a difference (Gomez et
    al., 2017; Kitaev et al., 2020, Reformer, section 3).
    """

    kind: Literal["reversible"] = "reversible"
    final_norm: ClassVar[bool] = True
    is_reversible: ClassVar[bool] = True
    join: Literal["concat", "mean"] = "concat"
    """Input of the final norm. concat: both streams concatenated (Reformer's published code); mean: their mean, which
    has the width of one stream."""

    @property
    def streams(self) -> int:
        return 2

    def output_dim(self, dim: int) -> int:
        return 2 * dim if self.join == "concat" else dim
