"""Probes of model internals, attached for one step.

To add a probe, write a function that registers measurements with its watch, and add it to a table:

    def largest_output(watch: Watch) -> None:
        for path, block in watch.blocks.items():
            watch.output(block, path, lambda x: x.abs().amax())

    PASSES["largest_output"] = largest_output
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from archwright.inspection.attention_scores import largest_logit, mean_entropy
from archwright.parts.kernels import Kernel

Values = dict[str, dict[str, float]]
"""Measurements by probe, then by the path of a layer, module or matrix."""
Optimizers = Iterable[torch.optim.Optimizer]

DEAD = 1e-6
"""Absolute value below which an activation counts as zero."""
CHUNK = 2**20
"""Logits converted to float32 at a time."""


class Probes:
    """Measures one step of any training loop without changing it.

        probes = Probes(model, optimizer)
        with probes:
            loss(model(tokens)).backward()
            optimizer.step()
        probes.values["gradient_norm"]["layers.0"]

    With gradient accumulation, activations are from the first forward pass, and gradients are accumulated over all.
    Compiled models hide their internals: use an uncompiled pass.

    Args:
        optimizers: one or several optimizers, for `update_ratio`.
        loss_scale: factor of the loss, as in float16 training.
        parameters: shards of this process; None: all parameters of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: torch.optim.Optimizer | Optimizers = (),
        *,
        loss_scale: float = 1.0,
        parameters: "Parameters | None" = None,
    ) -> None:
        self.model, self.loss_scale = model, loss_scale
        self.parameters = WholeParameters(model) if parameters is None else parameters
        if isinstance(optimizers, torch.optim.Optimizer):
            optimizers = [optimizers]
        self.optimizers = list(optimizers)
        self._seen: dict[str, dict[str, Tensor]] = {}
        self._attached = ExitStack()

    def __enter__(self) -> Self:
        self._attached.enter_context(self.watching(PASSES | STEPS))
        return self

    def __exit__(self, *_: object) -> None:
        self._attached.close()

    @contextmanager
    def watching(self, probes: Mapping[str, "Probe"]) -> Iterator[None]:
        """Attach probes inside a with block."""
        with ExitStack() as attached:
            for name, probe in probes.items():
                watch = Watch(
                    self.model, self.parameters, self.optimizers, self.loss_scale, attached
                )
                self._seen[name] = watch.seen
                with torch.no_grad():
                    probe(watch)
            yield

    @property
    def values(self) -> Values:
        """Measurements, as numbers."""
        values = {}
        for name, seen in self._seen.items():
            if seen:  # read all at once, as each reading waits for a GPU
                read = torch.stack([value.double() for value in seen.values()]).tolist()
                values[name] = dict(zip(seen, read, strict=True))
        return values


class Parameters(Protocol):
    """Parameters or parameter shards of this process."""

    def named(self) -> Mapping[str, Tensor]:
        """Return the tensors that optimizers update, by name."""

    def numel(self, name: str) -> int:
        """Return the number of elements of an unsharded parameter."""

    def watch_gradients(self, look: Callable[[str, Tensor], None]) -> Callable[[], None]:
        """Call `look` with each gradient before clipping; return a function that removes the hooks."""

    def add_up(self, sums: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return sums over shards of all processes, by parameter."""


class WholeParameters:
    """All parameters of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._named = dict(model.named_parameters())

    def named(self) -> Mapping[str, Tensor]:
        return self._named

    def numel(self, name: str) -> int:
        return self._named[name].numel()

    def watch_gradients(self, look: Callable[[str, Tensor], None]) -> Callable[[], None]:
        def seen(p: Tensor, name: str) -> None:
            assert p.grad is not None
            look(name, p.grad)

        handles = [
            p.register_post_accumulate_grad_hook(partial(seen, name=name))
            for name, p in self._named.items()
            if p.requires_grad
        ]

        def end() -> None:
            for handle in handles:
                handle.remove()

        return end

    def add_up(self, sums: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return sums


@dataclass
class Watch:
    """One probe and its measurements, one number per row, such as a layer's path."""

    model: nn.Module
    parameters: Parameters
    optimizers: list[torch.optim.Optimizer]
    loss_scale: float
    attached: ExitStack
    """Callbacks that remove hooks and restore attributes."""
    seen: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> dict[str, nn.Module]:
        """Layers by path: the outermost module list, or the longest of several."""
        lists = {p: m for p, m in self.model.named_modules() if isinstance(m, nn.ModuleList)}
        path = max(lists, key=lambda p: (-p.count("."), len(lists[p])), default="")
        return {f"{path}.{i}": block for i, block in enumerate(lists.get(path, []))}

    @property
    def matrices(self) -> dict[str, Tensor]:
        """Parameters (or local shards) with at least two dimensions, by name."""
        return {name: p for name, p in self.parameters.named().items() if p.ndim > 1}

    def output(self, module: nn.Module, row: str, measure: Callable[[Tensor], Tensor]) -> None:
        """Measure the first output of a module at its first call."""
        hook = module.register_forward_hook(lambda m, x, out: self.note(row, measure, _first(out)))
        self.attached.callback(hook.remove)

    def input(self, module: nn.Module, row: str, measure: Callable[[Tensor], Tensor]) -> None:
        """Measure the first input of a module at its first call."""
        hook = module.register_forward_pre_hook(lambda m, x: self.note(row, measure, _first(x)))
        self.attached.callback(hook.remove)

    def note(self, row: str, measure: Callable[..., Tensor], *values: Any) -> None:
        """Record a measurement unless the row already has one."""
        if row not in self.seen:
            with torch.no_grad():
                self.seen[row] = measure(*values)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute until the probe is removed."""
        self.attached.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)


Probe = Callable[[Watch], None]


def residual_rms(watch: Watch) -> None:
    """sqrt(mean(x^2)) of the residual stream before the first layer and after each."""
    for path, block in watch.blocks.items():
        if not watch.seen and path.endswith(".0"):
            watch.input(block, "embedding", rms)
        watch.output(block, path, rms)


def attention_logit(watch: Watch) -> None:
    """max of scale q k^T over heads, sampled queries and visible keys, before any cap."""
    _wrap_kernels(watch, largest_logit)


def attention_entropy(watch: Watch) -> None:
    """Mean of -sum_k p_k ln p_k in nats over heads and sampled queries. One key gives 0, n equal keys ln n."""
    _wrap_kernels(watch, mean_entropy)


def log_z(watch: Watch) -> None:
    """Mean log sum exp of the logits. The z-loss of PaLM, section 5, keeps it near 0."""
    for path, module in watch.model.named_modules():
        if path.rpartition(".")[2] in ("head", "lm_head"):
            watch.output(module, path, mean_log_z)


def dead_activations(watch: Watch) -> None:
    """Share of feed-forward hidden units with absolute value below 1e-6 on every token."""
    for path, module in watch.model.named_modules():
        owner, _, name = path.rpartition(".")
        if name == "down":
            watch.input(module, owner, dead_share)


def gradient_norm(watch: Watch) -> None:
    """sqrt(sum g^2) over all parameters of a layer, before clipping; other parameters by top-level module."""
    rows = {
        name: next((p for p in watch.blocks if name.startswith(f"{p}.")), name.partition(".")[0])
        for name, p in watch.parameters.named().items()
        if p.requires_grad
    }
    squares: dict[str, Tensor] = {}

    def look(name: str, gradient: Tensor) -> None:
        squares[name] = _norm(gradient).square()

    def gather() -> None:
        sums, by_row = watch.parameters.add_up(squares), dict[str, list[Tensor]]()
        for name, row in rows.items():  # in the model's order
            if name in sums:
                by_row.setdefault(row, []).append(sums[name])
        for row, values in by_row.items():
            watch.seen[row] = torch.stack(values).sum().sqrt() / watch.loss_scale

    watch.attached.callback(gather)
    watch.attached.callback(watch.parameters.watch_gradients(look))


def weight_rms(watch: Watch) -> None:
    """sqrt(mean(w^2)) of each matrix before the update."""
    squares = {name: _norm(p).square() for name, p in watch.matrices.items()}

    def gather() -> None:
        for name, square in watch.parameters.add_up(squares).items():
            watch.seen[_path(name)] = (square / watch.parameters.numel(name)).sqrt()

    watch.attached.callback(gather)


def update_ratio(watch: Watch) -> None:
    """rms(new - old) / rms(old) of each matrix; copies the matrices during the update."""
    names = {id(p): name for name, p in watch.matrices.items()}
    old: dict[str, Tensor] = {}
    moved: dict[str, Tensor] = {}
    """Sums of squares of each matrix's change and old value."""

    def before(optimizer: Any, *_: Any) -> None:
        old.update((name, p.detach().clone()) for name, p in _owned(optimizer, names))

    def after(optimizer: Any, *_: Any) -> None:
        for name, p in _owned(optimizer, names):
            was = old.pop(name)
            moved[name] = torch.stack([_norm(p.detach() - was), _norm(was)]).square()

    def gather() -> None:
        for name, squares in watch.parameters.add_up(moved).items():
            change, was = squares.sqrt()
            watch.seen[_path(name)] = change / was

    watch.attached.callback(gather)
    for optimizer in watch.optimizers:
        for handle in (
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
        ):
            watch.attached.callback(handle.remove)


PASSES: dict[str, Probe] = {
    "residual_rms": residual_rms,
    "attention_logit": attention_logit,
    "attention_entropy": attention_entropy,
    "dead_activations": dead_activations,
    "log_z": log_z,
}
"""Probes of a forward pass."""

STEPS: dict[str, Probe] = {
    "gradient_norm": gradient_norm,
    "weight_rms": weight_rms,
    "update_ratio": update_ratio,
}
"""Probes of a backward pass and an update."""


def rms(x: Tensor) -> Tensor:
    """sqrt(mean(x^2)), in float32 at least."""
    mean: Tensor = _norm(x) / x.numel() ** 0.5
    return mean


def dead_share(hidden: Tensor) -> Tensor:
    """Return the share of units (last axis) that are zero on all tokens."""
    largest: Tensor = hidden.abs().flatten(0, -2).amax(0)
    share: Tensor = (largest < DEAD).double()
    return share.mean()


def mean_log_z(logits: Tensor) -> Tensor:
    """Return the mean log sum exp over the last axis, in float32 or wider."""
    rows = logits.flatten(0, -2)
    chunks = rows.split(max(1, CHUNK // rows.shape[-1]))
    sums = [
        torch.logsumexp(chunk.to(torch.promote_types(chunk.dtype, torch.float32)), -1).sum()
        for chunk in chunks
    ]
    return torch.stack(sums).sum() / len(rows)


def _wrap_kernels(watch: Watch, measure: Callable[..., Tensor]) -> None:
    """Measure the arguments of the kernel of each attention module."""
    for path, module in watch.model.named_modules():
        if isinstance(kernel := vars(module).get("kernel"), Kernel):

            def seen(*args: Any, run: Any = kernel.run, path: str = path, **more: Any) -> Any:
                watch.note(path, lambda: measure(*args, **more))
                return run(*args, **more)

            watch.replace(module, "kernel", kernel._replace(run=seen))


def _path(name: str) -> str:
    """Return the path of the module of a matrix."""
    return name.removesuffix(".weight")


def _owned(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    for group in optimizer.param_groups:
        yield from ((names[id(p)], p) for p in group["params"] if id(p) in names)


def _first(value: Any) -> Any:
    """Return the first value of a tuple, or the value itself."""
    return value[0] if isinstance(value, tuple) and value else value


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(
        x.detach(), dtype=torch.promote_types(x.dtype, torch.float32)
    )
    return norm
