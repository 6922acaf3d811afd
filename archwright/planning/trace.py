"""Costs of whole models, traced on fake tensors with one layer of each kind.

Layers with equal specs are of one kind and have equal costs. A trace runs one layer of each kind and multiplies its
costs by the number of layers of the kind. Embeddings, head and loss are traced directly.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from archwright.data.inputs import Inputs
from archwright.losses import pop_aux_losses
from archwright.model.across_layers import provides, reads_from
from archwright.model.build import build, layer_of_rank
from archwright.model.cache import Cache
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.model.model import Decoder, Layer, Output, Stack
from archwright.parts.linear import Linear
from archwright.parts.masks import prefix_size
from archwright.parts.sharing import Sharing
from archwright.planning.counter import Counter, Held, Key, PartStack, Sort, followed
from archwright.planning.fakes import fake_like
from archwright.spec.errors import UserError

Phase = Literal["forward", "activations", "training", "prefill", "decode"]
Precision = Literal["fp32", "autocast", "bf16"]
"""Precision of a trace: all in 32 bits; weights in 32 and products in 16 (autocast); all in 16 bits."""


@dataclass(frozen=True)
class Trace:
    """Costs of a pass, summed over layers."""

    flops: dict[Key, float]
    """FLOPs by part; keys have no layer."""
    num_bytes: dict[Key, float]
    kept: list[Held]
    """Tensors held until the backward pass, from one layer of each kind and from parts outside layers."""
    results: list[Held]
    """Results of products and attention, kept by selective recomputation."""
    entering: dict[int, Held]
    """Input hidden states of a layer of each kind."""
    times: list[int]
    """Number of layers of each kind."""
    provided: dict[int, int]
    """Elements provided by a layer of each kind for later layers."""
    partial: set[str]
    """Parts with partial sums as results, for all tokens on each rank."""
    gathered: set[str]
    """Parts inside branches with experts, which read all tokens on each rank."""

    def total(self, *sorts: Sort, phase: str = "forward", without: Collection[str] = ()) -> float:
        """Return the FLOPs of some sorts, without some parts."""
        return sum(
            n
            for key, n in self.flops.items()
            if key.sort in sorts and key.phase == phase and key.part not in without
        )


def kinds_of(stack: Stack) -> list[list[int]]:
    """Return the places of the layers of each kind in a stack.

    Layers of one kind have equal specs, provide and read the same values, and read states of layers of one kind.
    """
    keys: list[Any] = []
    kinds: list[list[int]] = []
    kind_at: list[int] = []
    names = stack.spec.layers.names(stack.spec.num_layers)
    for place, (name, layer) in enumerate(zip(names, stack.stack, strict=True)):
        sources = [m.reads_state_of for m in layer.mixers().values()]
        states = [None if source is None else kind_at[source - 1] for source in sources]
        key = (stack.spec.layers_by_kind[name], {*provides(layer)}, {*reads_from(layer)}, states)
        if key not in keys:
            keys.append(key)
            kinds.append([])
        kind_at.append(keys.index(key))
        kinds[kind_at[-1]].append(place)
    return kinds


def trace(
    model: Decoder,
    phase: Phase,
    *,
    length: int,
    target_length: int | None = None,
    texts: int = 1,
    precision: Precision = "fp32",
    kernel: str = "flex",
    tensor: int = 1,
    real: bool = False,
) -> Trace:
    """Return the costs of a pass over texts.

    Args:
        phase: "forward": no gradients; "activations": forward pass that keeps activations; "training": forward and
            backward pass; "prefill": into a cache, with logits of the last token; "decode": the last of `length`
            tokens, with earlier tokens cached.
        target_length: decoder tokens for a source of `length`; default: `length`, or 1 in prefill.
        real: also compute the pass of a model with values, for a comparison.
        tensor: ranks that share the heads and columns of layers; the trace covers one rank.

    Raises:
        UserError: the shape of an operator depends on values.
    """
    if model.spec.encoder_model is None:
        target_length = None
    asked = _Pass(phase, length, target_length, texts, precision, kernel, tensor)
    if real:
        return _traced(model, asked, real=True)
    if any(not p.is_meta for p in model.parameters()):
        if model not in _ON_META:
            _ON_META[model] = build(model.spec, device="meta")
        model = _ON_META[model]
    known = _TRACES.setdefault(model, {})
    if asked not in known:
        known[asked] = _traced(model, asked)
    return known[asked]


class _Pass(NamedTuple):
    """Arguments of a trace."""

    phase: Phase
    length: int
    target_length: int | None
    texts: int
    precision: Precision
    kernel: str
    tensor: int


_TRACES: WeakKeyDictionary[Decoder, dict[_Pass, Trace]] = WeakKeyDictionary()
_ON_META: WeakKeyDictionary[Decoder, Decoder] = WeakKeyDictionary()


def _traced(model: Any, asked: _Pass, *, real: bool = False) -> Trace:
    parts = PartStack()
    trains = asked.phase in ("activations", "training")
    was_training = model.training
    with ExitStack() as inside:
        layers, times = inside.enter_context(_one_of_each_kind(model, asked.tensor))
        for mixer in (m for stack in model.stacks for m in stack.mixers()):
            if "kernel" in vars(mixer):
                inside.callback(setattr, mixer, "kernel", mixer.kernel)
            mixer.use_kernel(asked.kernel)
        modules = [*_named_modules(model, {*layers})]
        weights = inside.enter_context(_weights(modules, asked.precision, real=real))
        counter = Counter(parts, weights)
        entering, provided = inside.enter_context(_entering(layers, counter))
        inside.callback(_forget, layers)
        inside.enter_context(followed(modules, parts, layers))
        inside.enter_context(counter.counting(fakes=not real))
        model.train(trains)
        inside.callback(model.train, was_training)
        if asked.precision == "autocast":
            inside.enter_context(torch.autocast("cpu", torch.bfloat16))
        with torch.set_grad_enabled(trains):
            tokens = torch.zeros(asked.texts, asked.length, dtype=torch.long)
            tokens = tokens if real else fake_like(tokens)
            if asked.phase == "decode":
                _decode(model, counter, tokens)
            elif asked.phase == "prefill":
                _prefill(model, tokens)
            else:
                out = _forward(model, tokens, asked.target_length)
                if asked.phase == "training":
                    _backward(out, parts)
    experts = tuple(
        f"{name}.{branch}"
        for name, m in modules
        if isinstance(m, Layer)
        for branch in m.branches
        if m.branch(branch).expert_parallel is not None
    )
    return Trace(
        _added_up(counter.flops, times),
        _added_up(counter.num_bytes, times),
        counter.kept,
        counter.results,
        entering,
        times,
        provided,
        partial={name for name, m in modules if isinstance(m, Linear) and m.cut == "rowwise"},
        gathered={name for name, _ in modules if name.startswith(experts)},
    )


def _forward(model: Any, tokens: Tensor, target_length: int | None) -> Output:
    out: Output = model(**_inputs(model, tokens, target_length or tokens.shape[1]).given())
    return out


def _backward(out: Output, parts: PartStack) -> None:
    results = (out.logits, out.sequence_logits, out.replaced_logits)
    roots = [x for x in results if x is not None and x.requires_grad]
    parts.follow_backward(*roots)
    parts.phase = "backward"
    _Root.apply(*roots).backward()  # type: ignore[no-untyped-call]


class _Root(torch.autograd.Function):
    """Scalar that depends on all results; gradients passed to `backward` would import sympy."""

    @staticmethod
    def forward(ctx: Any, *roots: Tensor) -> Tensor:
        ctx.roots = [root.detach() for root in roots]
        return roots[0].new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return tuple(map(torch.empty_like, ctx.roots))


def _prefill(model: Any, tokens: Tensor) -> None:
    if model.spec.generator_model is not None:
        _forward(model, tokens, None)
        return
    inputs = _inputs(model, tokens, 1).given()
    if (cache := _new_cache(model)) is not None:
        inputs["cache"] = cache
    model.head(model.hidden(**inputs)[:, -1:])


def _decode(model: Any, counter: Counter, tokens: Tensor) -> None:
    cache = _new_cache(model)
    prefix = max(map(prefix_size, model.masks.values()), default=0)
    # Without a cache, the whole text is read again; a prefix must be read in one piece.
    if cache is None or 1 < tokens.shape[1] <= prefix:
        _prefill(model, tokens)
        return
    source: tuple[None, ...] = ()
    counter.off = True
    if isinstance(model, EncoderDecoder):
        source, cache.memory = (None,), model.encode(tokens)
    before = tokens[:, 1:]
    # Read the last token separately: the first token after a prompt doubles the cache, later tokens do not.
    several = before.shape[1] > max(prefix, 1)
    for read in before.split([before.shape[1] - 1, 1], 1) if several else [before]:
        if read.shape[1]:
            model.hidden(*source, read, cache=cache)
    counter.off = False
    model.head(model.hidden(*source, tokens[:, :1], cache=cache)[:, -1:])


def _new_cache(model: Any) -> Cache | None:
    """Return an empty cache; None if masks or mixers allow none."""
    try:
        cache: Cache = model.new_cache()
    except UserError:
        return None
    return cache


def _inputs(model: Decoder, tokens: Tensor, target_length: int) -> Inputs:
    if model.spec.encoder_model is None:
        return Inputs(tokens)
    return Inputs(tokens, decoder_tokens=tokens.new_zeros(len(tokens), target_length))


@contextmanager
def _one_of_each_kind(
    model: Decoder, tensor: int
) -> Iterator[tuple[dict[nn.Module, int], list[int]]]:
    """Reduce stacks to one layer per kind; yield layer numbers and counts."""
    layers: dict[nn.Module, int] = {}
    times: list[int] = []
    encoder = model.spec.encoder_model
    with ExitStack() as inside:
        for stack in model.stacks:
            kinds = kinds_of(stack)
            before = [*stack.stack]
            inside.callback(setattr, stack, "order", None)
            inside.callback(setattr, stack, "keeps_all", False)
            stack.keeps_all, indices = True, stack.spec.layer_indices
            stack.order = tuple(indices[places[0]] for places in kinds)
            sharing = Sharing()
            memory_dim = None if encoder is None or stack is not model else encoder.output_dim
            for place, *others in kinds:
                layer = before[place]
                if tensor > 1:
                    inside.callback(stack.layers.__setitem__, indices[place], layer)
                    layer = layer_of_rank(stack.spec, place, sharing, tensor, memory_dim)
                    stack.layers[indices[place]] = layer
                for mixer in layer.mixers().values():
                    if (source := mixer.reads_state_of) is not None:
                        inside.callback(setattr, mixer, "reads_state_of", source)
                        at = next(i for i, places in enumerate(kinds) if source - 1 in places)
                        mixer.reads_state_of = 1 + at
                layers[layer] = len(times)
                times.append(1 + len(others))
        yield layers, times


def _named_modules(model: nn.Module, layers: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield traced modules with their names, without layer indices."""
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        name, module = waiting.pop()
        yield name, module
        for child_name, child in module.named_children():
            if not isinstance(child, Layer) or child in layers:
                below = name if child_name.isdigit() else f"{name}.{child_name}".lstrip(".")
                waiting.append((below, child))


@contextmanager
def _weights(
    modules: Iterable[tuple[str, nn.Module]], precision: Precision, *, real: bool
) -> Iterator[list[Tensor]]:
    """Replace parameters and buffers by fakes, shared if tied; yield parameters."""
    made: dict[int, Tensor] = {}
    weights: list[Tensor] = []
    with ExitStack() as inside:
        for _, module in modules:
            if isinstance(module, Linear):
                # Count the products of several branches separately, each for its branch.
                inside.callback(vars(module).pop, "can_join", None)
                module.can_join = False
            for tensors in cast(tuple[Any, ...], (module._parameters, module._buffers)):
                is_weight = tensors is module._parameters
                narrow = torch.bfloat16 if precision == "bf16" and is_weight else None
                for name, tensor in [(n, t) for n, t in tensors.items() if t is not None]:
                    if id(tensor) not in made:
                        new = tensor if real else fake_like(tensor.detach(), narrow)
                        made[id(tensor)] = new.requires_grad_(tensor.requires_grad)
                        weights += [new] * is_weight
                    inside.callback(tensors.__setitem__, name, tensor)
                    tensors[name] = made[id(tensor)]
        yield weights


@contextmanager
def _entering(
    layers: dict[nn.Module, int], counter: Counter
) -> Iterator[tuple[dict[int, Held], dict[int, int]]]:
    """Attribute inputs to their layers; yield inputs and provided elements by layer."""
    found: dict[int, Held] = {}
    provided: dict[int, int] = {}

    def enters(layer: nn.Module, args: tuple[Any, ...]) -> None:
        storage, number = args[0].untyped_storage(), layers[layer]
        found[number] = Held(number, "layers", storage.nbytes(), storage._cdata)
        provided[number] = sum(provides(cast(Layer, layer)).values()) * args[0].shape[:2].numel()
        counter.claim(args[0], number)

    with ExitStack() as inside:
        for layer in layers:
            inside.callback(layer.register_forward_pre_hook(enters).remove)
        yield found, provided


def _forget(layers: Iterable[nn.Module]) -> None:
    """Reset the counts and auxiliary losses of branches."""
    for layer in layers:
        assert isinstance(layer, Layer)
        for branch in map(layer.branch, layer.branches):
            branch.after_step(updated=False)
    for layer in layers:
        pop_aux_losses(layer)


def _added_up(costs: dict[Key, float], times: list[int]) -> dict[Key, float]:
    """Multiply the costs of each layer by the count of its kind."""
    found: dict[Key, float] = defaultdict(float)
    for key, number in costs.items():
        found[key._replace(layer=None)] += number * (1 if key.layer is None else times[key.layer])
    return dict(found)
