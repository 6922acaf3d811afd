"""The stages of a pipeline: each process has a run of a model's layers, cut from outside; and what it holds of them.

The first stage has the embedding, the last one the last norm and the head. A process holds nothing of what other stages
alone compute: of these parameters it has no rows, under the same names, so that optimizers and checkpoints are as
without it. What several stages compute with, such as the table that embedding and head share, is held by all of these,
which add their gradients up (Narayanan et al., 2021, Megatron-LM: the embedding group). Numbers are held by all.
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
from archwright.scale.exchange import add_up
from archwright.scale.layout import Layout


class StageShards:
    """A model of whose layers each process of a group has a run, or several.

    Args:
        model: whole, and the same in all processes; after `drop`, what this one holds of it.
        group: the processes, in the order of their stages; None: this one alone.
        num_stages: as many as there are processes, or a multiple of that: process r then has stages r, r + size, ...

    Attributes:
        runs: the layers of each stage.
        own: the stages of this process.
        now: the one that `model.hidden` computes.
        stream: what the stage before gave, [batch, length, dim]; None for the first.
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
        self._shapes: dict[str, torch.Size] = {}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        if group is not None:
            self._plan(model, group, num_stages)

    def _plan(self, model: Decoder, group: dist.ProcessGroup, num_stages: int) -> None:
        self.own = [*range(self.rank, num_stages, self.size)]
        self.runs = stage_runs(model, num_stages)
        users: dict[Tensor, set[int]] = {}
        for stage, run in enumerate(self.runs):
            for module in (*run, *_ends(model, stage, num_stages)):
                for tensor in (*module.parameters(), *module.buffers()):
                    users.setdefault(tensor, set()).add(stage % self.size)
        everyone = {*range(self.size)}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            found = users.get(tensor, everyone) if tensor.ndim else everyone
            self._holders[name], self._shapes[name] = tuple(sorted(found)), tensor.shape
        width = dist.get_world_size() // self.size
        for holders in sorted({found for found in self._holders.values() if len(found) > 1}):
            ranks = [[stage * width + place for stage in holders] for place in range(width)]
            own = new_groups(ranks)
            if own is not None:
                self._groups[holders] = own
        setattr(model, "hidden", self._hidden)  # noqa: B010

    @property
    def is_last(self) -> bool:
        """Whether the stage that is computed is the last one."""
        return self.now == len(self.runs) - 1

    def holds(self, name: str) -> bool:
        """Tell whether this process holds anything of a parameter or buffer."""
        return self.group is None or self.rank in self._holders[name]

    def counts(self, name: str) -> bool:
        """Tell whether this process is the one that counts a parameter, of all that hold it."""
        return self.group is None or self.rank == self._holders[name][0]

    def copies(self, name: str) -> tuple[int, int]:
        """Return how many processes of the group hold the same of a parameter or buffer, and which one this is."""
        if self.group is None or not self.holds(name):
            return 1, 0
        return len(self._holders[name]), self._holders[name].index(self.rank)

    @torch.no_grad()
    def drop(self) -> None:
        """Let go of what other stages alone compute with."""
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if not self.holds(name):
                tensor.data = tensor.data[:0].clone()

    def shape(self, name: str, own: torch.Size) -> torch.Size:
        """Return the shape of a whole tensor, which is `own` where this process holds it."""
        return own if self.holds(name) else self._shapes[name]

    def whole(self, name: str, own: Tensor) -> Tensor:
        """Return a tensor of which this process has `own`, or nothing; all processes ask alike."""
        if self.group is None or len(holders := self._holders[name]) == self.size:
            return own
        value = own.detach().contiguous() if self.holds(name) else own.new_empty(self._shapes[name])
        dist.broadcast(value, dist.get_global_rank(self.group, holders[0]), group=self.group)
        return value

    def bring(self, parameters: Mapping[str, Tensor]) -> None:
        """Add up the gradients of what several stages hold; what has one in another stage alone gets an empty one."""
        if self.group is None:
            return
        has = [p.grad is not None for p in parameters.values()]
        device = next(self.model.parameters()).device
        anywhere = torch.tensor(has, dtype=torch.uint8, device=device)
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
        """Return the stream behind the stage that is computed; behind the last one, what the head reads."""
        assert cache is None, "stages keep nothing of a text"
        model = self.model
        assert isinstance(model, Decoder), "others are refused"
        context, x = model.new_context(tokens, **layout), self.stream
        if x is None:
            x = model.add_positions(model.embedding(tokens, token_type_ids), context)
            x = model.begin(x, context)
        x = model.through(self.runs[self.now], x, context)
        return model.end(x) if self.is_last else x


def stage_runs(model: Decoder, num_stages: int) -> list[list[Layer]]:
    """Return the layers of each stage: runs of which the largest has as few parameters as can be, those of the head
    counted with the last; an embedding multiplies nothing."""
    layers = [*model.stack]
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    sizes[-1] += sum(p.numel() for p in model.head.parameters())
    sums = [0, *accumulate(sizes)]
    # Of the first stages, by where they end: the size of the largest, and where each ends.
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
    """Yield a line for each choice of a model by which its layers are no pipeline, or too few."""
    spec, otherwise = model.spec, "or scale.pipeline = 1"
    if type(model) is not Decoder:
        name = "encoder" if spec.generator.is_none else "generator"
        yield f"model.{name}: found one, whose layers are not in one row with the others; expected none, {otherwise}"
        return
    if spec.num_layers < layout.num_stages:
        each = ", of which each process has two, as they are interleaved" * layout.is_interleaved
        yield (
            f"model.num_layers: found {spec.num_layers}; expected at least {layout.num_stages}, one for each stage of "
            f"scale.pipeline = {layout.pipeline}{each}"
        )
    for path, found, none in beside_the_stream(spec):
        yield f"{path}: found {found}, which layers read beside the stream; expected {none}, {otherwise}"
    lines = dict[str, None]()
    runs = stage_runs(model, min(layout.num_stages, spec.num_layers))
    stages = [0, *(stage for stage, run in enumerate(runs) for _ in run)]  # by number; 0: embedding
    kinds = spec.layers.names(spec.num_layers)
    for number, (kind, layer) in enumerate(zip(kinds, model.stack, strict=True), 1):
        path = "model" if kind == "default" else f"model.layer_kinds.{kind}"
        if layer.embedding_skip is not None:
            lines[
                f"{path}.residual.embedding_skip: found true, which layers read beside the stream"
            ] = None
        for name, source in reads_from(layer).items():
            if stages[number] != stages[source] and layer.embedding_skip is None:
                lines[f'{path}: reads "{name}" of layer {source}, in another stage'] = None
        for name in layer.branches:
            if option := layer.branch(name).across_layers:
                choice = getattr(spec.layers_by_kind[kind], name)
                lines[
                    f'{path}.{name}.{option}: found "{getattr(choice, option)}", by which layers depend on those of '
                    "other stages"
                ] = None
    yield from (f"{line}; expected another, {otherwise}" for line in lines)


def _ends(model: Decoder, stage: int, num_stages: int) -> Iterator[nn.Module]:
    """Yield what a stage has beside its layers."""
    assert isinstance(model, Decoder), "others are refused"
    first = (model.embedding, model.position, model.embedding_norm, model.project_in)
    last = (model.norm, model.head, model.sequence_head)
    for module in (*(first if stage == 0 else ()), *(last if stage == num_stages - 1 else ())):
        if module is not None:
            yield module
