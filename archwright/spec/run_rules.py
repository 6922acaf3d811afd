"""Rules between the values of a run, beside those of its model."""

from collections.abc import Iterator
from pathlib import PurePath

from archwright.spec.attention import Attention
from archwright.spec.errors import UserError
from archwright.spec.masks import Mask, Prefix
from archwright.spec.rules import enforce
from archwright.spec.run_spec import RunSpec
from archwright.spec.validation_errors import show


def enforce_run(run: RunSpec) -> None:
    """Raise a UserError with one line for each broken rule of the run and its model."""
    rules = (_name, _rows, _stride, _tokenizer, _hidden_future, _ignored_inputs)
    lines = [line for rule in rules for line in rule(run)]
    try:
        enforce(run.model)
    except UserError as error:
        lines += [f"model.{line}" for line in error.lines]
    if lines:
        raise UserError(*lines)


def _name(run: RunSpec) -> Iterator[str]:
    """A run that names no folder lies below runs/, whoever wrote its recipe."""
    path = PurePath(run.name)
    if path.is_absolute() or ".." in path.parts:
        yield f"name: found {show(run.name)}; expected a name without .., as the folder is runs/<name>"


def _rows(run: RunSpec) -> Iterator[str]:
    """Each part of a batch has a row at least."""
    if run.grad_accum_steps > run.batch_size:
        yield (
            f"grad_accum_steps: found {run.grad_accum_steps}; expected at most batch_size = {run.batch_size}, "
            "as each part of a batch needs a row"
        )


def _stride(run: RunSpec) -> Iterator[str]:
    """Windows of an evaluation leave no token out."""
    stride = run.evaluate.stride
    if stride != "auto" and stride > run.model.context_length:
        yield (
            f"evaluate.stride: found {stride}; expected at most "
            f"model.context_length = {run.model.context_length}, or tokens are left out"
        )


def _hidden_future(run: RunSpec) -> Iterator[str]:
    """No token sees those that it is trained to predict."""
    for at, attention in _attentions(run):
        mask = getattr(attention, "mask", None)
        seers = [] if attention.causal else [("attention", attention.kind)]
        if isinstance(mask, Prefix) or (isinstance(mask, Mask) and not mask.causal):
            seers.append(("attention.mask", mask.kind))
        for path, kind in seers:
            yield (
                f'{at}{path}.kind: found "{kind}", through which tokens see what follows '
                "them; training to predict the next token expects a causal mask"
            )


def _ignored_inputs(run: RunSpec) -> Iterator[str]:
    """No attention ignores positions, documents or padding of a batch."""
    needed = {"padding_mask": "evaluation pads its last texts"}
    if run.data.packing == "document_mask":
        needed["segment_ids"] = 'data.packing = "document_mask" hides documents from one another'
    for at, attention in _attentions(run):
        for name, why in needed.items():
            if name not in attention.takes:
                yield (
                    f'{at}attention.kind: found "{attention.kind}", which takes no {name}, but {why}; expected '
                    f'"{name}" in takes of {type(attention).__name__}'
                )


def _attentions(run: RunSpec) -> Iterator[tuple[str, Attention]]:
    """Yield the attention of every kind of layer with the prefix of its path."""
    for name, layer in run.model.layers_by_kind.items():
        yield "model." if name == "default" else f"model.layer_kinds.{name}.", layer.attention


def _tokenizer(run: RunSpec) -> Iterator[str]:
    """A tokenizer's file is named where one is read, and only there."""
    tokenizer = run.data.tokenizer
    if tokenizer.path and tokenizer.kind != "file":
        yield (
            f'data.tokenizer.path: given beside data.tokenizer.kind = "{tokenizer.kind}", '
            'which reads no file; expected kind = "file"'
        )
    if tokenizer.kind == "file" and not tokenizer.path:
        yield (
            'data.tokenizer.path: found nothing; data.tokenizer.kind = "file" expects the path '
            "of a tokenizer.json"
        )
