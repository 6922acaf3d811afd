"""How good is the model on text it has not seen? Nats per token, perplexity, bits per byte."""

import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from archwright.data.compressors import Baseline, baselines
from archwright.data.eval_windows import HeldOut, bits_per_byte
from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.losses import cross_entropy
from archwright.model.decoder import Decoder
from archwright.runs.load import OpenRun
from archwright.text.corpus import Document, open_texts
from archwright.text.tokenizer import Tokenizer
from archwright.training.compiling import uncompiled
from archwright.training.precision import Precision

ROW_TOKENS = 8192
"""Tokens of a batch: enough for fast products, few enough for the logits to stay small."""


@dataclass(frozen=True)
class Evaluation:
    """A model's result on a text. Perplexity is exp(nats per token)."""

    nats_per_token: float
    perplexity: float
    bits_per_byte: float
    num_tokens: int
    num_bytes: int

    def record(self) -> dict[str, Any]:
        """Return the values as a metrics record has them."""
        return asdict(self)


def held_out_windows(
    store: TokenStore,
    tokenizer: Tokenizer,
    context_length: int,
    *,
    stride: int | None = None,
    max_tokens: int | None = None,
) -> HeldOut:
    """Return the windows to evaluate on; see `HeldOut`."""
    batch_size = max(1, ROW_TOKENS // context_length)
    lengths = tokenizer.token_lengths
    return HeldOut(store, context_length, batch_size, stride, max_tokens, lengths)


@torch.inference_mode()
def evaluate(model: Decoder, windows: HeldOut, precision: Precision) -> Evaluation:
    """Return what a model reaches on held-out windows; each token of the text is predicted once."""
    was_training = model.training
    model.eval()
    nats = 0.0
    with uncompiled(model):
        for batch in windows:
            tokens, targets = (
                torch.from_numpy(x).to(precision.device) for x in (batch.tokens, batch.targets)
            )
            padding = None
            if int(batch.lengths.min()) < tokens.shape[1]:
                padding = torch.from_numpy(batch.padding_mask).to(precision.device)
            with precision.autocast():
                logits = model(tokens, padding_mask=padding).logits
            nats += cross_entropy(logits, targets).nll_sum.item()
    model.train(was_training)
    mean = nats / windows.num_tokens
    return Evaluation(
        nats_per_token=mean,
        perplexity=math.exp(min(mean, 700.0)),
        bits_per_byte=bits_per_byte(nats, windows.num_bytes),
        num_tokens=windows.num_tokens,
        num_bytes=windows.num_bytes,
    )


def evaluate_text(run: OpenRun, *texts: str, stride: int | None = None) -> Evaluation:
    """Return what a run's model reaches on texts: files, folders, globs, `-`, or `stdlib`.

    Raises:
        UserError: missing, binary, empty or undecodable files, one line each.
    """
    documents = open_texts(texts, run.spec.data)
    with tempfile.TemporaryDirectory() as folder:
        store = prepare_documents(documents, run.tokenizer, Path(folder))
        windows = held_out_windows(
            store, run.tokenizer, run.spec.model.context_length, stride=stride
        )
        return evaluate(run.model, windows, Precision("fp32", torch.device("cpu")))


def compressors(windows: HeldOut, tokenizer: Tokenizer) -> tuple[Baseline, ...]:
    """Return what compressors reach on the very bytes that the windows predict."""
    texts = (tokenizer.decode(tokens) for tokens in windows.texts())
    return baselines(Document(str(i), iter([text])) for i, text in enumerate(texts))
