"""Probes of a model's inside: attached for a step, gone after it, nothing in between.

To add a probe, write a function that tells its watch what to look at, and put it into a table:

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

Values = dict[str, dict[str, float]]
"""Records of probes: by probe, then by the path of a layer, module or matrix."""
Optimizers = Iterable[torch.optim.Optimizer]

DEAD = 1e-6
"""Size below which an activation counts as none."""
CHUNK = 2**20
"""Logits that are converted to float32 at a time."""


class Probes:
    """Looks at one step of any training loop, and changes nothing of it.

        probes = Probes(model, optimizer)
        with probes:
            loss(model(tokens)).backward()
            optimizer.step()
        probes.values["gradient_norm"]["layers.0"]

    Of several forward passes in the block, as in gradient accumulation, the first is looked at; gradients
    are those of all. A model that is compiled hides its inside: look at a pass of its own, uncompiled.

    Args:
        optimizers: one or several, for `update_ratio`.
        loss_scale: what the loss was multiplied by, as in float16 training.
        parameters: what this process holds of the model's; None: all.
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
        """Attach some probes while the block lasts."""
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
        found = {}
        for name, seen in self._seen.items():
            if seen:  # read all at once, as each reading waits for a GPU
                read = torch.stack([value.double() for value in seen.values()]).tolist()
                found[name] = dict(zip(seen, read, strict=True))
        return found


class Parameters(Protocol):
    """What this process holds of a model's parameters."""

    def named(self) -> Mapping[str, Tensor]:
        """Return it by name, as optimizers move it."""

    def numel(self, name: str) -> int:
        """Return how many numbers a whole parameter has."""

    def watch_gradients(self, look: Callable[[str, Tensor], None]) -> Callable[[], None]:
        """Let `look` see each gradient before it is clipped; return what ends that."""

    def add_up(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return sums over all processes of what each has found of what it holds, by parameter."""


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

    def add_up(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return found


@dataclass
class Watch:
    """One probe and its measurements: a number for each row, such as a layer's path."""

    model: nn.Module
    parameters: Parameters
    optimizers: list[torch.optim.Optimizer]
    loss_scale: float
    attached: ExitStack
    """Undoes on leaving what is pushed here."""
    seen: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> dict[str, nn.Module]:
        """The layers by path: the outermost module list, of several the longest."""
        lists = {p: m for p, m in self.model.named_modules() if isinstance(m, nn.ModuleList)}
        path = max(lists, key=lambda p: (-p.count("."), len(lists[p])), default="")
        return {f"{path}.{i}": block for i, block in enumerate(lists.get(path, []))}

    @property
    def matrices(self) -> dict[str, Tensor]:
        """The parameters of at least two dimensions by name, or what this process holds of them."""
        return {name: p for name, p in self.parameters.named().items() if p.ndim > 1}

    def output(self, module: nn.Module, row: str, measure: Callable[[Tensor], Tensor]) -> None:
        """Measure what a module returns, at its first call."""
        hook = module.register_forward_hook(lambda m, x, out: self.note(row, measure, _first(out)))
        self.attached.callback(hook.remove)

    def input(self, module: nn.Module, row: str, measure: Callable[[Tensor], Tensor]) -> None:
        """Measure what a module is given first, at its first call."""
        hook = module.register_forward_pre_hook(lambda m, x: self.note(row, measure, _first(x)))
        self.attached.callback(hook.remove)

    def note(self, row: str, measure: Callable[..., Tensor], *values: Any) -> None:
        """Measure unless that was done before."""
        if row not in self.seen:
            with torch.no_grad():
                self.seen[row] = measure(*values)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Put another value in the place of an attribute."""
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
    """max over heads and sampled queries of scale q k^T, before any cap, where k is visible."""
    _wrap_kernels(watch, largest_logit)


def attention_entropy(watch: Watch) -> None:
    """-sum_k p_k ln p_k in nats, the mean over heads and sampled queries; 0 is one key, ln n all of n."""
    _wrap_kernels(watch, mean_entropy)


def log_z(watch: Watch) -> None:
    """The mean of log sum exp of the logits; PaLM, section 5, keeps it near 0 by a loss."""
    for path, module in watch.model.named_modules():
        if path.rpartition(".")[2] in ("head", "lm_head"):
            watch.output(module, path, mean_log_z)


def dead_activations(watch: Watch) -> None:
    """The share of a feed-forward's hidden units that stay below 1e-6 in size on every token."""
    for path, module in watch.model.named_modules():
        owner, _, name = path.rpartition(".")
        if name == "down":
            watch.input(module, owner, dead_share)


def gradient_norm(watch: Watch) -> None:
    """sqrt(sum g^2) over all parameters of a layer, before clipping; the rest by their first name."""
    rows = {
        name: next((p for p in watch.blocks if name.startswith(f"{p}.")), name.partition(".")[0])
        for name, p in watch.parameters.named().items()
        if p.requires_grad
    }
    squares: dict[str, Tensor] = {}

    def look(name: str, gradient: Tensor) -> None:
        squares[name] = _norm(gradient).square()

    def gather() -> None:
        found, by_row = watch.parameters.add_up(squares), dict[str, list[Tensor]]()
        for name, row in rows.items():  # in the model's order
            if name in found:
                by_row.setdefault(row, []).append(found[name])
        for row, own in by_row.items():
            watch.seen[row] = torch.stack(own).sum().sqrt() / watch.loss_scale

    watch.attached.callback(gather)
    watch.attached.callback(watch.parameters.watch_gradients(look))


def weight_rms(watch: Watch) -> None:
    """sqrt(mean(w^2)) of each matrix before the update."""
    own = {name: _norm(p).square() for name, p in watch.matrices.items()}

    def gather() -> None:
        for name, square in watch.parameters.add_up(own).items():
            watch.seen[_path(name)] = (square / watch.parameters.numel(name)).sqrt()

    watch.attached.callback(gather)


def update_ratio(watch: Watch) -> None:
    """rms(new - old) / rms(old) of each matrix; needs a copy of the matrices while the update lasts."""
    names = {id(p): name for name, p in watch.matrices.items()}
    old: dict[str, Tensor] = {}
    moved: dict[str, Tensor] = {}
    """Of each matrix, the sums of squares of its change and of what it was."""

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
    """Return the share of the units, the last axis, that are none on all tokens."""
    largest: Tensor = hidden.abs().flatten(0, -2).amax(0)
    share: Tensor = (largest < DEAD).double()
    return share.mean()


def mean_log_z(logits: Tensor) -> Tensor:
    """Return the mean log sum exp over the last axis, in float32 at least and in chunks."""
    rows = logits.flatten(0, -2)
    chunks = rows.split(max(1, CHUNK // rows.shape[-1]))
    sums = [
        torch.logsumexp(chunk.to(torch.promote_types(chunk.dtype, torch.float32)), -1).sum()
        for chunk in chunks
    ]
    return torch.stack(sums).sum() / len(rows)


def _wrap_kernels(watch: Watch, measure: Callable[..., Tensor]) -> None:
    """Let `measure` see what each attention module gives to its kernel."""
    for path, module in watch.model.named_modules():
        if callable(kernel := vars(module).get("kernel")):

            def seen(*args: Any, kernel: Any = kernel, path: str = path, **more: Any) -> Any:
                watch.note(path, lambda: measure(*args, **more))
                return kernel(*args, **more)

            watch.replace(module, "kernel", seen)


def _path(name: str) -> str:
    """Return the path of the module of a matrix."""
    return name.removesuffix(".weight")


def _owned(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    for group in optimizer.param_groups:
        yield from ((names[id(p)], p) for p in group["params"] if id(p) in names)


def _first(value: Any) -> Any:
    """Return the first of several values, which modules are given and may return."""
    return value[0] if isinstance(value, tuple) and value else value


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(
        x.detach(), dtype=torch.promote_types(x.dtype, torch.float32)
    )
    return norm
