"""Evaluation on held-out text: nats per token, perplexity, bits per byte."""

import math
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from archwright.data.compressors import Baseline, baselines
from archwright.data.eval_windows import HeldOut, Windows, bits_per_byte, why_no_bits
from archwright.data.inputs import Batch
from archwright.data.objectives import Examples, Vocabulary
from archwright.data.pair_text import PairText, PairWindows
from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.data.task_text import TaskText, TaskWindows
from archwright.generation.writing import Settings, generate
from archwright.hf.import_export import open_any
from archwright.losses import Loss, cross_entropy
from archwright.machine.compiling import uncompiled
from archwright.machine.precision import Precision
from archwright.model.model import Decoder, Output
from archwright.planning.plans import refuse_positions
from archwright.progress import Progress
from archwright.runs.load import OpenRun, Run
from archwright.scale.processes import ALONE, Processes
from archwright.spec.errors import UserError
from archwright.spec.objectives import OF_PAIRS, Objective
from archwright.spec.run_spec import RunSpec
from archwright.text.corpus import Document, open_texts
from archwright.text.pairs import read_pairs
from archwright.text.tokenizer import Tokenizer
from archwright.training.data import Material, reload_data
from archwright.training.step import second_answers, second_cases, to_device
from archwright.training.text_losses import (
    FEW_DOCUMENTS,
    MOST_CLUSTERS,
    STRETCHES,
    Bucket,
    Clusters,
    Curve,
    TokenLosses,
)

Text = TokenStore | TaskText | PairText
ROW_TOKENS = 8192
"""Tokens of a batch: enough for fast matmuls, with small logits."""

COLUMNS = 7
"""Number of sums of an evaluated batch."""


@dataclass(frozen=True)
class _Recorded:
    def record(self) -> dict[str, Any]:
        """Return the defined values, as in a metrics record."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Evaluation(_Recorded):
    """A model's result on a text. Perplexity is exp(nats per token)."""

    nats_per_token: float
    """Mean over predicted tokens."""
    perplexity: float
    bits_per_byte: float | None
    """None if the objective does not define it."""
    num_tokens: int
    """Tokens of the text."""
    num_bytes: int
    accuracy: float | None = None
    """Share of a task's answers with the largest probability; None for documents."""
    num_answers: int | None = None
    """Number of the task's answers."""
    token_accuracy: float | None = None
    """Share of predicted tokens with the largest probability; None without a second task."""
    second_loss: float | None = None
    """Mean -ln p of the second task, in nats per sequence or token."""
    second_accuracy: float | None = None
    """Share of right answers of the second task."""
    interval: tuple[float, float] | None = None
    """95 % interval of the nats per token, from resampled documents. None for tasks, for pairs, and in training."""
    bits_per_byte_interval: tuple[float, float] | None = None
    """95 % interval of the bits per byte."""
    resampled: str | None = None
    """Number and kind of the parts of the text that the intervals resample."""
    by_position: tuple[Bucket, ...] | None = None
    """Losses by position in the context; see `Curve`."""


@dataclass(frozen=True)
class Halves(_Recorded):
    """Losses on two halves of the held-out windows, which alternate: one for tuning, one for judging."""

    tuning: float
    """Nats per token of the first half."""
    judged_tokens: tuple[int, ...]
    """Targets of the second half, by cluster: documents, joined documents, or stretches of few documents."""
    judged_nats: tuple[float, ...]
    """Sums of -ln p, by cluster."""
    tuning_bits_per_byte: float | None = None
    """Bits per byte of the first half, if windows have bytes."""
    judged_bytes: tuple[int, ...] | None = None
    """Bytes of the targets of the second half, by cluster, if windows have bytes."""


def held_out_windows(
    text: Text,
    tokenizer: Tokenizer,
    objective: Objective,
    context_length: int,
    *,
    stride: int | None = None,
    max_tokens: int | None = None,
    max_bytes: int | None = None,
) -> Windows:
    """Return the windows of a text; see `HeldOut`, `TaskWindows` and `PairWindows`."""
    batch_size = max(1, ROW_TOKENS // context_length)
    if isinstance(text, TaskText):
        return TaskWindows(text, context_length, batch_size, max_tokens)
    examples = Examples(objective, Vocabulary.of(tokenizer))
    if isinstance(text, PairText):
        return PairWindows(text, examples, batch_size, max_tokens)
    change = text.text_change(tokenizer)
    if change and objective.defines_bits_per_byte:
        warnings.warn(why_no_bits(change), stacklevel=2)
    return HeldOut(
        text,
        context_length,
        batch_size,
        stride,
        max_tokens,
        tokenizer.token_lengths,
        examples,
        max_bytes,
        lossless=change == "",
    )


class Reading(NamedTuple):
    """Amount of held-out text, and length of its windows; see `held_out_windows`."""

    context_length: int
    stride: int | None
    max_tokens: int
    max_bytes: int | None

    def windows(self, run: RunSpec, material: Material) -> Windows:
        """Return the windows of a run's held-out text."""
        return held_out_windows(
            material.held_out,
            material.tokenizer,
            run.objective,
            self.context_length,
            stride=self.stride,
            max_tokens=self.max_tokens,
            max_bytes=self.max_bytes,
        )


def reading_of(run: RunSpec, max_tokens: int, max_bytes: int | None) -> Reading:
    """Return the reading in windows of the context length."""
    stride = None if run.evaluate.stride == "auto" else run.evaluate.stride
    return Reading(run.model.context_length, stride, max_tokens, max_bytes)


def evaluate(
    model: Decoder,
    windows: Windows,
    precision: Precision,
    processes: Processes = ALONE,
    observe: Callable[[Tensor, Batch], None] | None = None,
) -> Evaluation:
    """Evaluate a model on held-out windows; ranks take batches in turn.

    Args:
        observe: Function of the logits and targets of each batch of this rank.
    """
    rows: list[list[float]] = []
    with processes.without_gradients():
        for out, batch, mine in _predictions(model, windows, precision, processes):
            # A row for each rank: the sums over ranks are the rows of all batches, in order.
            rows += ([0.0] * COLUMNS for _ in range(processes.size))
            if out is not None and mine:
                rows[processes.rank - processes.size] = _sums(windows, out, batch)
                if observe is not None:
                    observe(out.logits, batch)
            del out  # before the next batch's logits exist
    sums = processes.sums([value for row in rows for value in row])
    totals = [0.0] * COLUMNS
    for start in range(0, len(sums), COLUMNS):
        totals = [a + b for a, b in zip(totals, sums[start : start + COLUMNS], strict=True)]
    return _evaluation(windows, totals)


def evaluate_halves(
    model: Decoder, windows: Windows, precision: Precision
) -> tuple[Evaluation, Halves]:
    """Evaluate a model on held-out windows, and on each half of them."""
    rows: list[Loss] = []

    def observe(logits: Tensor, batch: Batch) -> None:
        rows.extend(cross_entropy(*row) for row in zip(logits, batch.targets, strict=True))

    found = evaluate(model, windows, precision, observe=observe)
    nats = np.array([row.nll_sum.item() for row in rows])
    tokens = np.array([int(row.num_targets) for row in rows])
    documents, numbers = windows.places
    tunes = numbers % 2 == 0
    different = np.unique(documents)
    if len(different) >= FEW_DOCUMENTS:
        place = np.searchsorted(different, documents)
        place = place * MOST_CLUSTERS // max(len(different), MOST_CLUSTERS)
    else:
        place = numbers * STRETCHES // max(int(numbers.max()) + 1, STRETCHES)
    judged = [~tunes & (place == p) for p in np.unique(place)]
    judged = [at for at in judged if tokens[at].any()]
    halves = Halves(
        tuning=float(nats[tunes].sum() / max(1, tokens[tunes].sum())),
        judged_tokens=tuple(int(tokens[at].sum()) for at in judged),
        judged_nats=tuple(float(nats[at].sum()) for at in judged),
    )
    if (size := windows.window_bytes) is not None:
        bits = bits_per_byte(float(nats[tunes].sum()), max(1, int(size[tunes].sum())))
        judged_bytes = tuple(int(size[at].sum()) for at in judged)
        halves = replace(halves, tuning_bits_per_byte=bits, judged_bytes=judged_bytes)
    return found, halves


def _sums(windows: Windows, out: Output, batch: Batch) -> list[float]:
    """Return nats, targets and right answers of a batch; then nats, cases and right answers of its second task, and
    the number of tokens predicted right."""
    loss = cross_entropy(out.logits, batch.targets)
    has_second = second_cases(batch) > 0
    right = 0
    if windows.counts_answers or has_second:
        right = int((out.logits.argmax(-1) == batch.targets).sum())
    sums = [loss.nll_sum.item(), int(loss.num_targets), right if windows.counts_answers else 0]
    if not has_second:
        return [*sums, 0.0, 0, 0, 0]
    nats, is_right = second_answers(out, batch)
    return [*sums, nats.sum().item(), len(nats), int(is_right.sum()), right]


def _predictions(
    model: Decoder,
    windows: Iterable[Batch],
    precision: Precision,
    processes: Processes = ALONE,
) -> Iterator[tuple[Output | None, Batch, bool]]:
    """Yield the output, the batch, and if this rank counts it; the output is None on other pipeline stages."""
    was_training = model.training
    model.eval()
    with uncompiled(model):
        for arrays, mine in processes.dealt(windows):
            batch = to_device(processes.tokens(arrays.map(torch.from_numpy)), precision.device)
            with precision.autocast():
                out = processes.output(model, batch)
            yield out, batch, mine
            del out
    model.train(was_training)


def _evaluation(windows: Windows, sums: Sequence[float]) -> Evaluation:
    """Return the evaluation of summed `_sums`."""
    nats, second_nats = sums[0], sums[3]
    num_targets, num_right, cases, second_right, tokens_right = (
        int(sums[i]) for i in (1, 2, 4, 5, 6)
    )
    mean = nats / num_targets if num_targets else math.nan
    defined = windows.defines_bits_per_byte
    return Evaluation(
        nats_per_token=mean,
        perplexity=math.exp(min(mean, 700.0)),
        bits_per_byte=bits_per_byte(nats, windows.num_bytes) if defined else None,
        num_tokens=windows.num_tokens,
        num_bytes=windows.num_bytes,
        accuracy=num_right / max(1, num_targets) if windows.counts_answers else None,
        num_answers=num_targets if windows.counts_answers else None,
        token_accuracy=tokens_right / max(1, num_targets) if cases else None,
        second_loss=second_nats / cases if cases else None,
        second_accuracy=second_right / cases if cases else None,
    )


def evaluate_text(
    run: Run,
    *texts: str,
    stride: int | None = None,
    length: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Evaluation:
    """Evaluate a model on texts: files, folders, globs, `-`, or `stdlib`.

    Args:
        run: A run, or a folder of `transformers`, such as an export.
        stride: Tokens between the starts of windows. Default: half the context.
        length: Longest context of `by_position`. Default: the context of the model.
        device: As in `open_run`.
        dtype: As in `open_run`.

    Raises:
        UserError: missing, binary, empty or undecodable files; the run was trained on a task or on pairs; or positions
            end before `length`.
    """
    run = open_any(run, device=device, dtype=dtype)
    refuse_text(run)
    documents = open_texts(texts, run.spec.data)
    with tempfile.TemporaryDirectory() as folder:
        store = prepare_documents(documents, run.tokenizer, Path(folder))
        return losses_of(run, store, stride, length)[0]


def refuse_text(run: OpenRun) -> None:
    """Check that a run's model predicts the tokens of a text.

    Raises:
        UserError: the run was trained on a task or on pairs, or its model has an encoder for a source.
    """
    if run.spec.data.pairs:
        raise UserError(
            f"text: {run.folder.path} was trained on pairs of a source and a target; leave it out to judge on held-out "
            f"pairs, or give others: archwright eval {run.folder.path} --pairs FILE"
        )
    if not run.spec.data.task.is_none:
        raise UserError(
            f'text: {run.folder.path} was trained on the task "{run.spec.data.task.kind}", whose answers are no '
            f"text; leave it out to judge on held-out examples: archwright eval {run.folder.path}"
        )
    if not (run.spec.model.encoder.is_none or run.spec.objective.has_source):
        raise UserError(
            f"text: {run.folder.path} has a model with an encoder, and no objective that makes a source and a target "
            f"of a text; judge it on pairs: archwright eval {run.folder.path} --pairs FILE"
        )


def evaluate_held_out(
    run: OpenRun, stride: int | None = None, length: int | None = None
) -> Evaluation:
    """Evaluate a run's model on its held-out text, pairs, or examples of its task.

    Raises:
        UserError: the run was imported, its data have changed, or as `evaluate_text`.
    """
    held_out = held_out_text(run)
    if isinstance(held_out, TokenStore):
        return losses_of(run, held_out, stride, length)[0]
    if length is not None:
        kind = "pairs" if run.spec.data.pairs else "a task"
        raise UserError(f"length: has no effect on {kind}; leave it out")
    return _evaluated(run, held_out, run.spec.objective)


def held_out_text(run: OpenRun) -> Text:
    """Return a run's held-out text, pairs, or examples of its task.

    Raises:
        UserError: the run was imported, or its data have changed.
    """
    if not run.folder.environment().get("data"):
        pairs = "" if run.spec.model.encoder.is_none else "; or pairs: --pairs FILE"
        raise UserError(f"text: found none; expected files, folders, globs, -, or stdlib{pairs}")
    return reload_data(run.spec, run.folder).held_out


def evaluate_pairs(run: OpenRun, pairs: str) -> Evaluation:
    """Evaluate a run's model on the targets of pairs.

    Args:
        pairs: a .tsv or .jsonl file, or `synthetic` or `synthetic-longer`: held-out pairs, or longer sentences.

    Raises:
        UserError: as `pair_text`.
    """
    return _evaluated(run, pair_text(run, pairs), OF_PAIRS)


def _evaluated(run: OpenRun, text: Text, objective: Objective) -> Evaluation:
    """Evaluate a run's model on a task or on pairs."""
    windows = held_out_windows(text, run.tokenizer, objective, run.spec.model.context_length)
    return evaluate(run.model, windows, _precision(run))


def losses_of(
    run: OpenRun, store: TokenStore, stride: int | None = None, length: int | None = None
) -> tuple[Evaluation, Clusters]:
    """Evaluate a run's model on a text, with intervals and losses by position; also return the sums over its parts."""
    context_length, precision = run.spec.model.context_length, _precision(run)
    windows = held_out_windows(
        store, run.tokenizer, run.spec.objective, context_length, stride=stride
    )
    assert isinstance(windows, HeldOut)
    losses = TokenLosses(windows, run.tokenizer.token_lengths)
    curve = _curve(run, store, length)
    total = sum(row.stop - row.start for row in windows.rows) + len(curve or ())
    done = 0
    with Progress("Evaluating", 1.0) as progress:

        def count(batch: Batch) -> None:
            nonlocal done
            done += batch.targets.numel()
            progress.reached(done / total)

        def observe(logits: Tensor, batch: Batch) -> None:
            losses.add(logits, batch)
            count(batch)

        found = evaluate(run.model, windows, precision, observe=observe)
        if curve is not None:
            with torch.no_grad():
                for out, batch, _ in _predictions(run.model, curve.batches(ROW_TOKENS), precision):
                    assert out is not None, "a single process has the whole model"
                    curve.add(out.logits, batch)
                    count(batch)
    clusters = losses.clusters()
    return replace(
        found,
        interval=clusters.interval(),
        bits_per_byte_interval=clusters.interval(per_byte=True),
        resampled=str(clusters),
        by_position=None if curve is None else curve.buckets(),
    ), clusters


def _curve(run: OpenRun, store: TokenStore, length: int | None) -> Curve | None:
    """Return the losses by position to be measured; None if windows of the objective are not read in order.

    Raises:
        UserError: positions end before `length`, no document is that long, or the objective has no such curve.
    """
    spec, context = run.spec.model, run.spec.model.context_length
    in_order = run.spec.objective.defines_bits_per_byte and spec.encoder.is_none
    if length is None:
        return Curve(store, context, context) if in_order else None
    if not in_order:
        raise UserError(
            f'length: {run.folder.path} has the objective "{run.spec.objective.kind}", which does not predict the '
            "tokens of a text in order; leave it out"
        )
    longest = int(np.diff(store.offsets).max()) - 1
    if not 1 <= length <= longest:
        raise UserError(
            f"length: found {length}; expected 1 to {longest}, the tokens of the longest document"
        )
    try:
        refuse_positions(spec, length)
    except UserError as error:
        raise UserError(*(line.replace("context:", "length:", 1) for line in error.lines)) from None
    return Curve(store, context, length)


def _precision(run: OpenRun) -> Precision:
    """Return plain products on the device of a model: its dtype is that of the weights."""
    return Precision("fp32", next(run.model.parameters()).device)


@dataclass(frozen=True)
class Answers:
    """Comparison of a model's answers with the targets of pairs."""

    exact: float
    """Share of answers that equal the target."""
    bleu: float | None
    """Corpus BLEU in percent (Papineni et al., 2002; sacrebleu's defaults); None without sacrebleu."""
    num_answers: int


def evaluate_answers(run: OpenRun, pairs: str, **settings: Unpack[Settings]) -> Answers:
    """Generate answers to the sources of pairs with `generate`, and compare them with the targets.

    Raises:
        UserError: as `pair_text`, or invalid settings.
    """
    text = pair_text(run, pairs)
    read = [text.pairs.pair(0, i) for i in range(text.pairs.num_pairs)]
    generated = generate(run, source=[pair.source for pair in read], **settings)
    answers = [str(answer) for answer in generated]
    targets = [pair.target for pair in read]
    exact = sum(a == b for a, b in zip(answers, targets, strict=True)) / len(read)
    return Answers(exact, bleu(answers, targets), len(read))


def bleu(answers: Sequence[str], targets: Sequence[str]) -> float | None:
    """Return BLEU in percent, with sacrebleu's defaults; None if sacrebleu is not installed."""
    try:
        from sacrebleu import corpus_bleu
    except ImportError:
        return None
    return float(corpus_bleu(list(answers), [list(targets)]).score)


def pair_text(run: OpenRun, pairs: str) -> PairText:
    """Return pairs as tokens for a run's model.

    Raises:
        UserError: missing or malformed files, or the model has no encoder.
    """
    if run.spec.model.encoder.is_none:
        raise UserError(
            f"pairs: {run.folder.path} has a model without an encoder, which would read the sources; judge it on a "
            "text: --text"
        )
    read = read_pairs(pairs, "pairs", run.spec.data.errors)
    return PairText(read, run.tokenizer, run.spec.model.context_length)


def compressors(windows: HeldOut, tokenizer: Tokenizer) -> tuple[Baseline, ...]:
    """Return the results of compressors on the bytes that the windows predict."""
    texts = (tokenizer.decode(tokens) for tokens in windows.texts())
    documents = (Document(str(i), iter([text])) for i, text in enumerate(texts))
    return baselines(documents, windows.num_bytes)
