"""The paired difference of two models' losses on the same text."""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.hf.import_export import open_any
from archwright.runs.load import Run
from archwright.spec.errors import UserError
from archwright.text.corpus import open_texts
from archwright.training.evaluation import Evaluation, held_out_text, losses_of, refuse_text
from archwright.training.text_losses import Numbers, ends


@dataclass(frozen=True)
class Difference:
    """The second model's loss minus the first one's, with a 95 % interval."""

    mean: float
    interval: tuple[float, float] | None
    """None if the models' losses have no common parts of the text."""


@dataclass(frozen=True)
class Comparison:
    """Evaluations of two models on the same documents, and their differences."""

    first: Evaluation
    second: Evaluation
    nats_per_token: Difference | None
    """None if the tokenizers differ."""
    bits_per_byte: Difference | None
    """None if a tokenizer changes the text."""
    resampled: str
    """Number and kind of the parts of the text that the intervals resample."""

    def record(self) -> dict[str, Any]:
        """Return the defined values."""
        values = asdict(self) | {"first": self.first.record(), "second": self.second.record()}
        return {name: value for name, value in values.items() if value is not None}


def compare_on_text(
    first: Run,
    second: Run,
    *texts: str,
    stride: int | None = None,
    length: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Comparison:
    """Evaluate two models on the same documents; arguments as in `evaluate_text`.

    Without texts, models with the same tokenizer read the held-out text of the first one.

    Both models are evaluated on the same resampled parts of the text, which removes the variance that they share.

    Raises:
        UserError: as `evaluate_text`, an objective that does not predict every token, or different tokenizers that
            change the text or read standard input.
    """
    runs = [open_any(run, device=device, dtype=dtype) for run in (first, second)]
    for run in runs:
        refuse_text(run)
        if not run.spec.objective.defines_bits_per_byte:
            raise UserError(
                f'{run.folder.path} has the objective "{run.spec.objective.kind}", whose loss is not that of a text; '
                "expected two models that predict each next token"
            )
    if runs[0].tokenizer.fingerprint == runs[1].tokenizer.fingerprint:
        tokenizers = [runs[0].tokenizer]
    elif "-" in texts:
        raise UserError("text: found - with two tokenizers, which read a text twice; give a file")
    else:
        tokenizers = [run.tokenizer for run in runs]
    with tempfile.TemporaryDirectory() as folder:
        held_out = None if texts else held_out_text(runs[0])
        if isinstance(held_out, TokenStore) and len(tokenizers) > 1:
            raise UserError("text: found none for two tokenizers; expected files, globs or stdlib")
        stores = (
            [held_out]
            if isinstance(held_out, TokenStore)
            else [
                prepare_documents(
                    open_texts(texts, runs[0].spec.data), tokenizer, Path(folder) / str(i)
                )
                for i, tokenizer in enumerate(tokenizers)
            ]
        )
        # Tokenizers with other settings, such as those of an export, may give the same tokens.
        same_tokens = stores[0].digest == stores[-1].digest
        (a, parts), (b, others) = (
            losses_of(run, store, stride, length)
            for run, store in zip(runs, (stores[0], stores[-1]), strict=True)
        )
    per_token = per_byte = None
    if same_tokens:
        per_token = _difference(a.nats_per_token, b.nats_per_token, parts.ratios(), others.ratios())
    if a.bits_per_byte is not None and b.bits_per_byte is not None:
        ratios = parts.ratios(per_byte=True), others.ratios(per_byte=True)
        per_byte = _difference(a.bits_per_byte, b.bits_per_byte, *ratios)
    if per_token is None and per_byte is None:
        raise UserError(
            f"{runs[0].folder.path} and {runs[1].folder.path} have different tokenizers, and one of them changes the "
            "text; expected the same tokenizer, or two that keep every byte"
        )
    return Comparison(a, b, per_token, per_byte, str(parts))


def _difference(a: float, b: float, ratios: Numbers | None, others: Numbers | None) -> Difference:
    return Difference(b - a, None if ratios is None or others is None else ends(others - ratios))
