"""Output of `archwright train ... --dry-run`: the resolved run and its cost."""

from collections.abc import Iterator
from typing import Any

from archwright import format as fmt
from archwright.cli.this_machine import rows, say
from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.planning.cost import run_flops_per_token
from archwright.planning.memory import cache_bytes_per_token, least_memory, writes
from archwright.planning.training_memory import split_one
from archwright.reporting.terminal import print_resolved
from archwright.scale.layout import ONE, Layout
from archwright.spec.data import SYNTHETIC, DataSpec
from archwright.spec.errors import UserError
from archwright.spec.overrides import flatten, toml_value
from archwright.spec.read import collapse_uniform, even_tables
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe import raw_bytes
from archwright.text.foreign import read_json
from archwright.text.open_tokenizer import tokenizer_file
from archwright.text.sources import STDIN, find_files
from archwright.text.tokenizer import Tokenizer
from archwright.text.words import word_tokenizer
from archwright.training.measured_step import measure_step
from archwright.training.resolve import resolved, with_steps

NAMING = ("source", "sources", "name")
"""Keys of a model's origin, not of its architecture."""

OFTEN = {
    "evaluate.every": "ten times in the run",
    "checkpoint.every": "about every minute",
    "probes.every": "never",
}
"""Text shown for a value of 0, by key."""


def dry_run(run: RunSpec, layout: Layout = ONE) -> None:
    """Print a resolved run, its costs, and a few measured steps.

    Args:
        layout: Processes of the run; steps are measured for a single process only.

    Raises:
        UserError: a missing tokenizer.
    """
    try:
        text = _text(run.data)
    except UserError as error:  # costs do not depend on the text
        text = f"none yet: {error.lines[0]}"
    model = build(run.model, device="meta", vocab_size=_num_tokens(run))
    num_steps = _num_steps(run, model)
    run = resolved(run, model)
    if num_steps:
        run = with_steps(run, num_steps)
    print(model)
    print()
    print_resolved(_pairs(run))
    print_resolved(_cost(run, model, num_steps, text))
    if layout.size > 1:
        print_resolved(_training_memory(run, model))
        print_resolved([("processes", str(layout))])
    else:
        print_resolved(_measured(run, num_steps))
    print("Nothing was trained.")


def _text(data: DataSpec) -> str:
    """Describe the training data."""
    if not data.task.is_none:
        return f"examples of {data.task.kind}, drawn for each step"
    if data.pairs == SYNTHETIC:
        return "sentences of two made-up languages, drawn for each step"
    files = [
        *(
            find_files([data.pairs], "data.pairs")
            if data.pairs
            else find_files([text for text in data.text if text != STDIN])
        ),
        *find_files([text for text in data.held_out if text != STDIN], "data.held_out"),
    ]
    size = sum(file.path.stat().st_size for file in files)
    return f"{len(files):,} file{'s' * (len(files) != 1)}, {fmt.size(size)}"


def _pairs(run: RunSpec) -> Iterator[tuple[str, object]]:
    values: dict[str, Any] = run.model_dump(by_alias=True)
    for name in NAMING:
        values["model"].pop(name)
    even = [path for path, equal in even_tables(run).items() if equal]
    for path, value in collapse_uniform(flatten(values), even).items():
        if value == "auto":
            yield path, "auto, settled when the run begins"
        else:
            yield path, OFTEN[path] if path in OFTEN and not value else toml_value(value)


def _cost(
    run: RunSpec, model: Decoder, num_steps: int | None, text: str
) -> Iterator[tuple[str, str]]:
    flops = run_flops_per_token(run, model)
    bound = ", an upper bound" if run.flops_evidence != "counted" else ""
    rows = -(-run.batch_size // run.grad_accum_steps)
    yield "text", text
    yield "parameters", f"{model.num_parameters():,}"
    least = least_memory(model, rows, whole_logits=run.machine.loss == "whole").total
    yield "memory", f"{fmt.size(least)} at least"
    cache = f"{fmt.size(cache_bytes_per_token(model))} a token, in 16 bits"
    yield "cache", cache if writes(model, run.objective) else "none"
    yield "a token", f"{fmt.count(flops)} FLOPs{bound}"
    yield "a step", f"{run.tokens_per_step:,} tokens"
    if num_steps:
        tokens = num_steps * run.tokens_per_step
        total = f"{tokens * flops:.3g} FLOPs{bound}"
        more = "at least " if bound and run.budget.unit == "flops" else ""
        yield "the run", f"{more}{num_steps:,} steps, {tokens:,} tokens, {total}"
    else:
        yield "the run", f"about as many steps as fit into {run.budget}"


def _training_memory(run: RunSpec, model: Decoder) -> Iterator[tuple[str, str]]:
    rows, whole_logits = -(-run.batch_size // run.grad_accum_steps), run.machine.loss == "whole"
    one, most = (
        split_one(run, model, again, rows, whole_logits=whole_logits) for again in ("full", "none")
    )
    sequences = "a sequence" if rows == 1 else f"{rows:,} sequences"
    yield (
        "training",
        f"{fmt.size(one)} to {fmt.size(most)} on one device, estimated for {sequences} at a time",
    )


def _measured(run: RunSpec, num_steps: int | None) -> Iterator[tuple[str, str]]:
    """Yield memory and time of a step on this machine."""
    try:
        step = measure_step(run, say)
    except UserError as error:
        yield "measured", f"no, {error.lines[0]}"
        return
    tokens = num_steps * run.tokens_per_step if num_steps else None
    for figure in rows(step, tokens):
        yield figure.label, ", ".join(filter(None, (figure.text, figure.remark)))


def _num_steps(run: RunSpec, model: Decoder) -> int | None:
    """Return the number of steps; None for a budget in time."""
    if run.machine.num_steps != "auto":
        return run.machine.num_steps
    if run.budget.seconds:
        return None
    flops = run_flops_per_token(run, model)
    parameters = model.num_parameters()
    return run.budget.steps(run.tokens_per_step, flops, num_parameters=parameters)


def _num_tokens(run: RunSpec) -> int:
    """Return the vocabulary size (for BPE, the maximum)."""
    if not run.data.task.is_none:
        return word_tokenizer(run.data.task.words).vocab_size
    spec = run.tokenizer
    special = list(dict.fromkeys((spec.end_of_text, *spec.special_tokens)))
    if spec.kind == "bpe":
        return spec.vocab_size
    if spec.kind == "bytes":
        return Tokenizer(raw_bytes(special), spec.end_of_text).vocab_size
    inner = read_json(tokenizer_file(spec.path))
    inner.add_special_tokens(special[1:])
    return Tokenizer(inner, spec.end_of_text).vocab_size
