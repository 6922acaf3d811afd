"""Local sizes and shards of branches under tensor parallelism, without communication."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor, nn

from archwright.model.model import Decoder, Layer, Stack
from archwright.parts.branch import Branch
from archwright.parts.linear import Linear
from archwright.parts.mixers.attention import AttentionMixer
from archwright.parts.tensor_parallel import TensorParallel, parallel_of
from archwright.spec.choice import Choice


def shared_branches(model: Decoder) -> dict[Branch, TensorParallel]:
    """Return the branches that ranks can split, with their declarations."""
    branches = [layer.branch(name) for layer in distinct_layers(model) for name in layer.branches]
    parallel = {
        b: plan
        for b in branches
        # Values that cross layers are complete, unless all their layers split them alike.
        if (plan := b.tensor_parallel) is not None
        and (plan.splits_values or not (b.provides or b.reads_from))
    }
    # If one attention needs a complete table of distances, all attentions with this table do.
    replicated = {shared_position(branch) for branch in branches if branch not in parallel} - {None}
    return {b: plan for b, plan in parallel.items() if shared_position(b) not in replicated}


def own_part(tensor: Tensor, axis: int, size: int, rank: int) -> Tensor:
    """Return a copy of a rank's shard along an axis."""
    return tensor.chunk(size, axis)[rank].clone()


def shared_position(branch: Branch) -> nn.Module | None:
    """Return the table of distances that several layers share."""
    if not isinstance(branch, AttentionMixer) or branch.relative is None:
        return None
    position: nn.Module = branch.relative.value
    return position if branch.relative.name else None


def cut_axes(part: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Yield the parameters and buffers that ranks split, with the axis."""
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
    """Divide the sizes of a part and its maps by the number of ranks."""
    modules = [*part.modules()]
    parallel = [(module, plan) for module in modules if (plan := parallel_of(module)) is not None]
    for module, plan in parallel:
        for name, number in plan.sizes.items():
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
    """Apply a row-wise map with bias / size, because the sum over ranks adds the bias `size` times."""
    assert m.bias is not None
    return m.product(x, m.weight, m.bias / size)


def distinct_layers(model: Decoder) -> list[Layer]:
    """Return the layers of a model without repetitions."""
    return [*dict.fromkeys(model.all_layers)]


def stacks(model: nn.Module) -> Iterator[tuple[Stack, str]]:
    """Yield the stacks of layers with the paths of their specs, the model's own stack first."""
    for name, module in model.named_modules():
        if isinstance(module, Stack):
            yield module, f"model.{name}".rstrip(".")


def layer_paths(stack: Stack, prefix: str = "model") -> Iterator[tuple[str, str, Layer]]:
    """Yield kind, path of the spec, and module of each layer."""
    kinds = stack.spec.layers.names(stack.spec.num_layers)
    for kind, layer in zip(kinds, stack.stack, strict=True):
        yield kind, prefix if kind == "default" else f"{prefix}.layer_kinds.{kind}", layer


def branch_paths(model: nn.Module) -> Iterator[tuple[str, Branch, Choice]]:
    """Yield path, module and choice of each branch in each layer."""
    for stack, prefix in stacks(model):
        for kind, path, layer in layer_paths(stack, prefix):
            for name in layer.branches:
                choice = stack.spec.layers_by_kind[kind].branches[name]
                yield f"{path}.{name}", layer.branch(name), choice
