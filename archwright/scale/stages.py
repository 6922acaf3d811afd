"""Pipeline stages: each rank has one or several runs of consecutive layers.

The first stage has the embedding, the last one the final norm and the head. Parameters of other stages become empty
tensors with the same names, so that optimizers and checkpoints need no change. A parameter of several stages, such as a
table tied to the head, is on all their ranks, which sum its gradients (Narayanan et al., 2021, Megatron-LM: the
embedding group). Scalars are on all ranks.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from archwright.model.across_layers import reads_from
from archwright.model.cache import Cache
from archwright.model.model import Decoder, Layer
from archwright.scale.connections import new_groups
from archwright.scale.context import beside_the_stream
from archwright.scale.cuts import layer_paths
from archwright.scale.exchange import add_up
from archwright.scale.layout import Layout


class StageShards:
    """Pipeline stages of a model. Without a group, this rank has the complete model.

    Args:
        model: Complete model, with equal values on all ranks. `drop` empties parameters of other stages.
        group: Ranks in the order of their stages.
        num_stages: Multiple of the number of ranks; rank r has stages r, r + size, ...

    Attributes:
        runs: Layers of each stage.
        own: Numbers of the local stages.
        now: Number of the stage that `model.hidden` computes.
        stream: Output of the previous stage [batch, length, dim]; None for the first stage.
    """

    def __init__(
        self, model: Decoder, group: dist.ProcessGroup | None, num_stages: int = 1
    ) -> None:
        self.model, self.group = model, group
        self.size = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()
        self.now = 0
        self.stream: Tensor | None = None
        self.runs: list[list[Layer]] = []
        self.own: list[int] = []
        self._holders: dict[str, tuple[int, ...]] = {}
        """Ranks with a parameter or buffer, by name."""
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        if group is None:
            return
        self.own = [*range(self.rank, num_stages, self.size)]
        self.runs = stage_runs(model, num_stages)
        users: dict[Tensor, set[int]] = {}
        for stage, run in enumerate(self.runs):
            for module in (*run, *_ends(model, stage, num_stages)):
                for tensor in (*module.parameters(), *module.buffers()):
                    users.setdefault(tensor, set()).add(stage % self.size)
        everyone = {*range(self.size)}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            ranks = users.get(tensor, everyone) if tensor.ndim else everyone
            self._holders[name] = tuple(sorted(ranks))
        width = dist.get_world_size() // self.size  # ranks of each stage
        for holders in sorted({ranks for ranks in self._holders.values() if len(ranks) > 1}):
            groups = [[stage * width + place for stage in holders] for place in range(width)]
            if (local := new_groups(groups)) is not None:
                self._groups[holders] = local
        setattr(model, "hidden", self._hidden)  # noqa: B010

    @property
    def is_last(self) -> bool:
        """True if the current stage is the last one."""
        return self.now == len(self.runs) - 1

    def holds(self, name: str) -> bool:
        """True if this rank has a parameter or buffer."""
        return self.group is None or self.rank in self._holders[name]

    def counts(self, name: str) -> bool:
        """True if this rank is the first one with a parameter."""
        return self.group is None or self.rank == self._holders[name][0]

    def copies(self, name: str) -> tuple[int, int]:
        """Return the number of ranks with a parameter or buffer, and the index of this rank among them."""
        if self.group is None or not self.holds(name):
            return 1, 0
        return len(self._holders[name]), self._holders[name].index(self.rank)

    @torch.no_grad()
    def drop(self) -> None:
        """Empty the parameters and buffers of other stages."""
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if not self.holds(name):
                tensor.data = tensor.data[:0].clone()

    def whole(self, name: str, local: Tensor, shape: torch.Size) -> Tensor:
        """Broadcast a tensor of this shape to all stages. All ranks make the same calls."""
        if self.group is None or len(holders := self._holders[name]) == self.size:
            return local
        value = local.detach().contiguous() if self.holds(name) else local.new_empty(shape)
        dist.broadcast(value, dist.get_global_rank(self.group, holders[0]), group=self.group)
        return value

    def bring(self, parameters: Mapping[str, Tensor]) -> None:
        """Sum the gradients of parameters of several stages. If another stage has a gradient, set missing ones to 0."""
        if self.group is None:
            return
        has_gradient = [p.grad is not None for p in parameters.values()]
        device = next(self.model.parameters()).device
        anywhere = torch.tensor(has_gradient, dtype=torch.uint8, device=device)
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=self.group)
        for p, moves in zip(parameters.values(), anywhere.tolist(), strict=True):
            if moves and p.grad is None:
                p.grad = torch.zeros_like(p)
        for holders, group in self._groups.items():
            same = [p.grad for name, p in parameters.items() if self._holders[name] == holders]
            add_up([gradient for gradient in same if gradient is not None], group)

    def _hidden(
        self,
        tokens: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        cache: Cache | None = None,
        **layout: Any,
    ) -> Tensor:
        """Return the residual stream after the current stage; after the last one, the input of the head."""
        assert cache is None, "pipeline stages have no cache"
        model = self.model
        assert isinstance(model, Decoder), "refused before"
        context, x = model.new_context(tokens, **layout), self.stream
        if x is None:
            x = model.add_positions(model.embedding(tokens, token_type_ids), context)
            x = model.begin(x, context)
        x = model.through(self.runs[self.now], x, context)
        return model.end(x) if self.is_last else x


def stage_runs(model: Decoder, num_stages: int) -> list[list[Layer]]:
    """Split the layers so that the largest stage has the fewest parameters.

    The last stage includes the parameters of the head. The embedding needs no matmul and is not counted."""
    layers = [*model.stack]
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    sizes[-1] += sum(p.numel() for p in model.head.parameters())
    sums = [0, *accumulate(sizes)]
    # End of the last of the first stages -> size of the largest of them, and the ends of all.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(num_stages):
        best = {
            end: min(
                (max(largest, sums[end] - sums[start]), (*ends, end))
                for start, (largest, ends) in best.items()
                if start < end
            )
            for end in range(stage + 1, len(layers) - num_stages + stage + 2)
        }
    _, ends = best[len(layers)]
    return [layers[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def refusals(model: Decoder, layout: Layout) -> Iterator[str]:
    """Yield a line for each choice that prevents a pipeline of this many stages."""
    spec, otherwise = model.spec, "or scale.pipeline = 1"
    if type(model) is not Decoder:
        name = "encoder" if spec.generator.is_none else "generator"
        yield f"model.{name}: found one, whose layers are not in one row with the others; expected none, {otherwise}"
        return
    if spec.num_layers < layout.num_stages:
        interleaved = (
            ", of which each process has two, as they are interleaved" * layout.is_interleaved
        )
        yield (
            f"model.num_layers: found {spec.num_layers}; expected at least {layout.num_stages}, one for each stage of "
            f"scale.pipeline = {layout.pipeline}{interleaved}"
        )
    for path, kind, plain in beside_the_stream(spec):
        yield f'{path}: found "{kind}", which layers read beside the stream; expected {plain}, {otherwise}'
    lines = dict[str, None]()
    runs = stage_runs(model, min(layout.num_stages, spec.num_layers))
    # Stage of each layer by its number. Number 0 is the embedding.
    stages = [0, *(stage for stage, run in enumerate(runs) for _ in run)]
    for number, (kind, path, layer) in enumerate(layer_paths(model), 1):
        if layer.embedding_skip is not None:
            lines[
                f"{path}.residual.embedding_skip: found true, which layers read beside the stream"
            ] = None
        for name, source in reads_from(layer).items():
            if stages[number] != stages[source] and layer.embedding_skip is None:
                lines[f'{path}: reads "{name}" of layer {source}, in another stage'] = None
        for name in layer.branches:
            if option := layer.branch(name).across_layers:
                choice = spec.layers_by_kind[kind].branches[name]
                lines[
                    f'{path}.{name}.{option}: found "{getattr(choice, option)}", by which layers depend on those of '
                    "other stages"
                ] = None
    yield from (f"{line}; expected another, {otherwise}" for line in lines)


def _ends(model: Decoder, stage: int, num_stages: int) -> Iterator[nn.Module]:
    """Yield the modules of a stage before and after its layers."""
    assert isinstance(model, Decoder), "refused before"
    first = (model.embedding, model.position, model.embedding_norm, model.project_in)
    last = (model.norm, model.head, model.sequence_head)
    for module in (*(first if stage == 0 else ()), *(last if stage == num_stages - 1 else ())):
        if module is not None:
            yield module
