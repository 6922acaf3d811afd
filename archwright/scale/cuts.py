"""How branches are cut up over the processes of a tensor group: what of them, and what one process has.

No process is asked here: what the others do is in `tensor`.
"""

from collections.abc import Iterator
from functools import partial

from torch import Tensor, nn

from archwright.model.model import Decoder, Layer
from archwright.parts.branch import Branch
from archwright.parts.linear import Linear
from archwright.parts.mixers.attention import AttentionMixer
from archwright.parts.tensor_parallel import TensorParallel, parallel_of


def shared_branches(model: Decoder) -> dict[Branch, TensorParallel]:
    """Return the branches of a model that processes may share, with what each says of itself."""
    branches = [layer.branch(name) for layer in distinct_layers(model) for name in layer.branches]
    found = {
        b: parallel
        for b in branches
        # Values that cross layers are whole, unless all their layers split them alike.
        if (parallel := b.tensor_parallel) is not None
        and (parallel.splits_values or not (b.provides or b.reads_from))
    }
    # A table of distances that one attention needs whole is whole for all that read it.
    whole = {shared_position(branch) for branch in branches if branch not in found} - {None}
    return {b: parallel for b, parallel in found.items() if shared_position(b) not in whole}


def own_part(whole: Tensor, axis: int, size: int, rank: int) -> Tensor:
    """Return a copy of what one of so many processes has of a tensor that is cut along an axis."""
    return whole.chunk(size, axis)[rank].clone()


def shared_position(branch: Branch) -> nn.Module | None:
    """Return the table of distances that a branch has together with those of other layers."""
    if not isinstance(branch, AttentionMixer) or branch.relative is None:
        return None
    position: nn.Module = branch.relative.value
    return position if branch.relative.name else None


def cut_axes(part: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Yield the parameters and buffers of a part that are cut, and along which axis."""
    for module in part.modules():
        if isinstance(module, Linear) and module.cut is not None:
            # [*, d_out, d_in] and [*, d_out]
            yield module.weight, module.weight.ndim - (2 if module.cut == "colwise" else 1)
            if module.cut == "colwise" and module.bias is not None:
                yield module.bias, module.bias.ndim - 1
        parallel = parallel_of(module)
        for name, axis in {} if parallel is None else parallel.per_head.items():
            yield (dict(module.named_parameters()) | dict(module.named_buffers()))[name], axis


def share_sizes(part: nn.Module, size: int) -> None:
    """Give a part and its maps the numbers of one process."""
    modules = [*part.modules()]
    parallel = [(module, found) for module in modules if (found := parallel_of(module)) is not None]
    for module, found in parallel:
        for name, number in found.sizes.items():
            if name in vars(module):
                setattr(module, name, number // size)
    for module in modules:
        if isinstance(module, Linear) and module.cut is not None:
            module.can_join = False
            if module.cut == "colwise":
                module.d_out //= size
            else:
                module.d_in //= size
                if module.bias is not None:
                    setattr(module, "forward", partial(_with_share_of_bias, module, size))  # noqa: B010


def _with_share_of_bias(m: Linear, size: int, x: Tensor) -> Tensor:
    """Return what a map that is cut by rows makes of x, whose bias is counted once in the sum over processes."""
    assert m.bias is not None
    return m.product(x, m.weight, m.bias / size)


def distinct_layers(model: Decoder) -> list[Layer]:
    """Return the layers of a model, each once."""
    return [*dict.fromkeys(model.all_layers)]
