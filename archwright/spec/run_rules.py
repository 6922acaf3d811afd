"""Rules between the values of a run, in addition to its model's rules."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import cast

from archwright.spec.choice import Spec
from archwright.spec.data import STDLIB, SYNTHETIC
from archwright.spec.errors import UserError
from archwright.spec.masks import Mask
from archwright.spec.mixers import Mixer
from archwright.spec.objectives import Objective
from archwright.spec.rules import enforce
from archwright.spec.run_spec import RunSpec
from archwright.spec.tasks import Task
from archwright.spec.validation_errors import show


def enforce_run(run: RunSpec) -> None:
    """Raise a UserError with all broken rules of the run and its model."""
    rules = (
        *(_choices, _name, _rows, _stride, _early_stop, _tokenizer, _task, _pairs, _objective),
        *(_visible_future, _ignored_inputs),
    )
    lines = [line for rule in rules for line in rule(run)]
    try:
        enforce(run.model)
    except UserError as error:
        lines += [f"model.{line}" for line in error.lines]
    if lines:
        raise UserError(*lines)


def _choices(run: RunSpec) -> Iterator[str]:
    """Options of a choice are compatible; a separate rule covers the model's choices."""
    for name, value in run:
        if name != "model" and isinstance(value, Spec):
            yield from (f"{name}.{line}" for line in value.contradicted(run.model.sizes))


def _name(run: RunSpec) -> Iterator[str]:
    """A run's name stays below runs/."""
    path = PurePath(run.name)
    if path.is_absolute() or ".." in path.parts or (run.name and not path.name):
        yield f"name: found {show(run.name)}; expected a name without .., as the folder is runs/NAME"


def _rows(run: RunSpec) -> Iterator[str]:
    """Each microbatch has at least one sequence."""
    if run.grad_accum_steps > run.batch_size:
        yield (
            f"grad_accum_steps: found {run.grad_accum_steps}; expected at most batch_size = {run.batch_size}, "
            "as each part of a batch needs a row"
        )


def _stride(run: RunSpec) -> Iterator[str]:
    """Evaluation windows skip no token."""
    stride = run.evaluate.stride
    if stride != "auto" and stride > run.model.context_length:
        yield (
            f"evaluate.stride: found {stride}; expected at most "
            f"model.context_length = {run.model.context_length}, or tokens are left out"
        )
    elif (
        stride not in ("auto", run.model.context_length) and not run.objective.defines_bits_per_byte
    ):
        yield (
            f'evaluate.stride: found {stride}; objective.kind = "{run.objective.kind}" reads a text once: '
            f"expected model.context_length = {run.model.context_length}"
        )


def _early_stop(run: RunSpec) -> Iterator[str]:
    """A least improvement requires a patience."""
    if run.early_stop.min_delta and not run.early_stop.patience:
        yield (
            f"early_stop.min_delta: found {show(run.early_stop.min_delta)} beside early_stop.patience = 0, with which "
            "no run ends early; give a number of evaluations, such as early_stop.patience=3"
        )


def _task(run: RunSpec) -> Iterator[str]:
    """Examples of a task fit into the context and exclude other texts, documents and objectives."""
    task, length, text = run.data.task, run.model.context_length, run.data.text
    if task.is_none:
        if names := [name for name in text if name in Task.choices() and name != "none"]:
            yield (
                f'data.text: found the task "{names[0]}" beside other texts; a task stands alone: data.text={names[0]}'
            )
        return
    if text != (task.kind,):
        yield (
            f'data.task.kind: found "{task.kind}" beside data.text = {show(text)}; the text is the task or documents: '
            f"give data.text={task.kind}, or data.task.kind=none"
        )
    found = f'data.text: found the task "{task.kind}", which '
    places = [
        ("model.context_length", length),
        *(("evaluate.lengths", n) for n in run.evaluate.lengths),
    ]
    for path, found_length in places:
        if found_length < task.shortest:
            yield (
                f'{path}: found {found_length}; data.text = "{task.kind}" with {task.needs} expects at least '
                f"{task.shortest}"
            )
    if not run.objective.defines_bits_per_byte:
        yield f'{found}says what is predicted; leave objective.kind = "{run.objective.kind}" out'
    if run.data.held_out:
        yield f"{found}holds out examples of its own; leave data.held_out out"
    if run.data.packing != "concat":
        yield f'{found}has one example in a row; leave data.packing = "{run.data.packing}" out'
    if run.data.tokenizer.kind != "bpe":
        yield f'{found}has tokens of its own; leave data.tokenizer.kind = "{run.data.tokenizer.kind}" out'


def _pairs(run: RunSpec) -> Iterator[str]:
    """Pairs require an objective of pairs and exclude other texts."""
    data, kind = run.data, run.objective.kind
    if run.objective.has_pairs and not data.pairs:
        yield (
            f'objective.kind: found "{kind}", which reads pairs of a source and a target; expected '
            f"data.pairs=FILE.tsv, data.pairs=FILE.jsonl or data.pairs={SYNTHETIC}"
        )
    if not data.pairs:
        return
    if not run.objective.has_pairs:
        yield (
            f'objective.kind: found "{kind}" beside data.pairs, of which it reads none; expected '
            f'"sequence_to_sequence", or a text in their place: data.text={STDLIB}'
        )
    if data.text != (STDLIB,):
        yield f"data.text: found {show(data.text)} beside data.pairs; a run reads one of them: leave the other out"
    if data.pairs == SYNTHETIC and data.held_out:
        yield f"data.held_out: given beside data.pairs={SYNTHETIC}, which holds out sentences of its own; leave it out"
    if run.evaluate.lengths:
        yield "evaluate.lengths: given beside data.pairs, which are as long as they are; leave it out"


def _objective(run: RunSpec) -> Iterator[str]:
    """The objective is compatible with the model and the data."""
    objective, encoder = run.objective, run.model.encoder
    if objective.has_source and encoder.is_none:
        yield (
            f'objective.kind: found "{objective.kind}", which makes a source and a target of a text; expected a model '
            "with an encoder: model.encoder.kind=stack model.cross_attention.kind=softmax"
        )
    if not objective.has_source and not encoder.is_none:
        kinds = {kind: cast(type[Objective], c) for kind, c in Objective.choices().items()}
        *most, last = [f'"{kind}"' for kind, choice in kinds.items() if choice.has_source]
        yield (
            f'objective.kind: found "{objective.kind}", which makes no source for the encoder; expected '
            f"{', '.join(most)} or {last}"
        )
    length, least = run.model.context_length, objective.least_context
    if length < least:
        yield f'model.context_length: found {length}; objective.kind = "{objective.kind}" expects at least {least}'
    if objective.judges_rows:
        second = f"objective: found {objective.second_task} beside tokens, "
        if run.model.sequence_head.is_none:
            yield f"{second}which a head of rows judges; expected model.sequence_head.kind=pooled"
        if run.model.embedding.token_types < 2:
            yield f"{second}in rows of two segments; expected model.embedding.token_types=2"
        if run.data.packing != "concat":
            yield f'{second}in rows without packed documents; expected data.packing="concat"'
    yield from _generator(run)
    reader = run.model.encoder_model
    if objective.has_source and reader is not None and reader.context_length < length:
        yield (
            f"model.encoder.context_length: found {reader.context_length}; expected at least model.context_length = "
            f"{length}, the length of a source"
        )
    if objective.has_source and not objective.packs_documents and run.data.packing != "concat":
        yield (
            f'data.packing: found "{run.data.packing}"; objective.kind = "{objective.kind}" keeps no documents '
            'of a row apart: expected "concat"'
        )


def _generator(run: RunSpec) -> Iterator[str]:
    """A generator requires its objective, a detecting head, and whole logits."""
    objective, generator = run.objective, run.model.generator
    if objective.has_generator and generator.is_none:
        yield (
            f'objective.kind: found "{objective.kind}", in which a generator proposes tokens; expected '
            "model.generator.kind=stack and model.head.predicts=replaced"
        )
    if not objective.has_generator and run.model.head.predicts == "replaced":
        yield (
            f'objective.kind: found "{objective.kind}" beside model.head.predicts = "replaced"; expected '
            '"replaced_tokens"'
        )
    if run.machine.loss == "chunked" and not generator.is_none:
        yield (
            'machine.loss: found "chunked" beside a generator, whose logits tokens are drawn from; expected "whole"'
        )


def _visible_future(run: RunSpec) -> Iterator[str]:
    """No token sees its target; bidirectional objectives and prefixes have masks that show later tokens."""
    objective, prefixes = run.objective, 0
    seers: list[tuple[str, str]] = []
    for at, mixer in _mixers(run):
        if not mixer.causal:
            seers.append((at, mixer.kind))
        mask = getattr(mixer, "mask", None)
        if isinstance(mask, Mask) and mask.causal and mask.shows_future and objective.has_prefix:
            prefixes += 1
        elif isinstance(mask, Mask) and (mask.shows_future or not mask.causal):
            seers.append((f"{at}.mask", mask.kind))
    if objective.causal:
        predicted = "what follows a prefix" if objective.has_prefix else "the next token"
        expected = '"prefix"' if objective.has_prefix else "causal"
        for path, kind in seers:
            yield (
                f'{path}.kind: found "{kind}", through which tokens see what follows '
                f"them; training to predict {predicted} expects a {expected} mask"
            )
    if seers or (objective.causal and (prefixes or not objective.has_prefix)):
        return
    path, attention = "model.attention", run.model.attention
    kind = attention.kind
    if isinstance(mask := getattr(attention, "mask", None), Mask):
        path, kind = f"{path}.mask", mask.kind
    expected = "prefix" if objective.has_prefix else "full"
    yield (
        f'{path}.kind: found "{kind}", through which no token sees what follows it; '
        f'objective.kind = "{objective.kind}" expects a mask such as "{expected}"'
    )


def _ignored_inputs(run: RunSpec) -> Iterator[str]:
    """No mixer ignores documents or padding of a batch."""
    needed = {"padding_mask": "evaluation pads its last texts"}
    if run.data.packing == "document_mask":
        needed["segment_ids"] = 'data.packing = "document_mask" hides documents from one another'
    for at, mixer in _mixers(run):
        for name, why in needed.items():
            if name not in mixer.takes:
                yield (
                    f'{at}.kind: found "{mixer.kind}", which takes no {name}, but {why}; expected '
                    f'"{name}" in takes of {type(mixer).__name__}'
                )


def _mixers(run: RunSpec) -> Iterator[tuple[str, Mixer]]:
    """Yield the mixers of every kind of layer with their paths."""
    for name, layer in run.model.layers_by_kind.items():
        at = "model." if name == "default" else f"model.layer_kinds.{name}."
        yield from ((f"{at}{branch}", mixer) for branch, mixer in layer.mixers.items())


def _tokenizer(run: RunSpec) -> Iterator[str]:
    """A tokenizer has a path if and only if its kind is "file"."""
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
