"""How good is the model on text it has not seen? Nats per token, perplexity, bits per byte."""

import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from archwright.data.compressors import Baseline, baselines
from archwright.data.eval_windows import HeldOut, Windows, bits_per_byte
from archwright.data.objectives import Examples, Vocabulary
from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.data.task_text import TaskText, TaskWindows
from archwright.losses import cross_entropy
from archwright.machine.compiling import uncompiled
from archwright.machine.precision import Precision
from archwright.model.language_model import LanguageModel
from archwright.runs.load import OpenRun
from archwright.spec.errors import UserError
from archwright.spec.objectives import Objective
from archwright.text.corpus import Document, open_texts
from archwright.text.tokenizer import Tokenizer
from archwright.training.data import task_material
from archwright.training.step import to_device

ROW_TOKENS = 8192
"""Tokens of a batch: enough for fast products, few enough for the logits to stay small."""


@dataclass(frozen=True)
class Evaluation:
    """A model's result on a text. Perplexity is exp(nats per token)."""

    nats_per_token: float
    """Of tokens that are to be predicted."""
    perplexity: float
    bits_per_byte: float | None
    """None where the objective defines none."""
    num_tokens: int
    """Of the text."""
    num_bytes: int
    accuracy: float | None = None
    """Share of the answers of a task to which the model gives the largest probability; None of documents."""
    num_answers: int | None = None
    """How many answers that are."""

    def record(self) -> dict[str, Any]:
        """Return the values as a metrics record has them, without those that are not defined."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def held_out_windows(
    text: TokenStore | TaskText,
    tokenizer: Tokenizer,
    objective: Objective,
    context_length: int,
    *,
    stride: int | None = None,
    max_tokens: int | None = None,
) -> Windows:
    """Return the windows to evaluate on; see `HeldOut` and `TaskWindows`."""
    batch_size = max(1, ROW_TOKENS // context_length)
    if isinstance(text, TaskText):
        return TaskWindows(text, context_length, batch_size, max_tokens)
    lengths = tokenizer.token_lengths
    examples = Examples(objective, Vocabulary.of(tokenizer))
    return HeldOut(text, context_length, batch_size, stride, max_tokens, lengths, examples)


@torch.inference_mode()
def evaluate(model: LanguageModel, windows: Windows, precision: Precision) -> Evaluation:
    """Return what a model reaches on held-out windows."""
    was_training = model.training
    model.eval()
    asks = isinstance(windows, TaskWindows)
    nats, num_targets, num_right = 0.0, 0, 0
    with uncompiled(model):
        for arrays in windows:
            batch = to_device(arrays, precision.device)
            with precision.autocast():
                logits = model(**batch.inputs.given()).logits
            loss = cross_entropy(logits, batch.targets)
            nats += loss.nll_sum.item()
            num_targets += int(loss.num_targets)
            if asks:
                num_right += int((logits.argmax(-1) == batch.targets).sum())
    model.train(was_training)
    mean = nats / num_targets if num_targets else math.nan
    defined = windows.defines_bits_per_byte
    return Evaluation(
        nats_per_token=mean,
        perplexity=math.exp(min(mean, 700.0)),
        bits_per_byte=bits_per_byte(nats, windows.num_bytes) if defined else None,
        num_tokens=windows.num_tokens,
        num_bytes=windows.num_bytes,
        accuracy=num_right / num_targets if asks else None,
        num_answers=num_targets if asks else None,
    )


def evaluate_text(run: OpenRun, *texts: str, stride: int | None = None) -> Evaluation:
    """Return what a run's model reaches on texts: files, folders, globs, `-`, or `stdlib`.

    Raises:
        UserError: missing, binary, empty or undecodable files, one line each; the run was trained on a task, whose
            answers no text has.
    """
    if not run.spec.data.task.is_none:
        raise UserError(
            f'text: {run.folder.path} was trained on the task "{run.spec.data.task.kind}", whose answers are no '
            f"text; leave it out to judge on held-out examples: archwright eval {run.folder.path}"
        )
    documents = open_texts(texts, run.spec.data)
    with tempfile.TemporaryDirectory() as folder:
        store = prepare_documents(documents, run.tokenizer, Path(folder))
        windows = held_out_windows(
            store,
            run.tokenizer,
            run.spec.objective,
            run.spec.model.context_length,
            stride=stride,
        )
        return evaluate(run.model, windows, Precision("fp32", torch.device("cpu")))


def evaluate_task(run: OpenRun) -> Evaluation:
    """Return what a run's model reaches on the held-out examples of the task that it was trained on.

    Raises:
        UserError: it was trained on documents.
    """
    if run.spec.data.task.is_none:
        raise UserError("text: found none; expected files, folders, globs, -, or stdlib")
    material = task_material(run.spec)
    windows = held_out_windows(
        material.held_out, material.tokenizer, run.spec.objective, run.spec.model.context_length
    )
    return evaluate(run.model, windows, Precision("fp32", torch.device("cpu")))


def compressors(windows: HeldOut, tokenizer: Tokenizer) -> tuple[Baseline, ...]:
    """Return what compressors reach on the very bytes that the windows predict."""
    texts = (tokenizer.decode(tokens) for tokens in windows.texts())
    return baselines(Document(str(i), iter([text])) for i, text in enumerate(texts))
