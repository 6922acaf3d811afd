"""Data of a run: texts, pairs, tokenizer."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from archwright.spec.choice import Spec
from archwright.spec.overrides import dump
from archwright.spec.tasks import Documents, Task


def _as_list(value: object) -> Any:
    return (value,) if isinstance(value, str) else value


def _recordable(name: str) -> str:
    """Refuse file names that are not UTF-8, like the run's spec."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "a name in UTF-8, as a run records it: rename the file, or name the folder above it"
        ) from None
    return name


Recordable = Annotated[str, AfterValidator(_recordable)]


Texts = Annotated[tuple[Recordable, ...], BeforeValidator(_as_list), Field(strict=False)]


NO_TASK = "none"
"""Kind of the task "none": the run trains on documents."""


STDLIB = "stdlib"
"""Text that is always available."""


PAIRS_OBJECTIVE = "sequence_to_sequence"
"""Kind of the objective for pairs."""


SYNTHETIC = "synthetic"
"""Pairs that are always available."""


class TokenizerSpec(Spec):
    """Tokenizer of a run."""

    kind: Literal["bpe", "bytes", "file"] = "bpe"
    """bpe: byte-level BPE trained on the text; bytes: raw bytes; file: a tokenizer.json."""
    vocab_size: int = Field(4096, ge=257, le=2**24)
    """Number of tokens of a trained BPE, including special tokens."""
    path: Recordable = ""
    """Path of a tokenizer.json, for kind "file"."""
    end_of_text: str = Field("<|endoftext|>", min_length=1)
    """Token at the start of every document."""
    special_tokens: Texts = ()
    """Further tokens that encoding a text never produces."""


class DataSpec(Spec):
    """Training text, its split, and its packing into batches."""

    text: Annotated[Texts, Field(min_length=1)] = (STDLIB,)
    """Files (plain text, .jsonl, .parquet), folders, globs, `-` for standard input, `stdlib`: Python's own source,
    `datasets:NAME[:CONFIG][@SPLIT]`, or a synthetic task by its name, such as `mqar`."""
    pairs: Recordable = Field("", examples=[SYNTHETIC])
    """Pairs of a source and a target for an encoder-decoder, instead of `text`: a .tsv or .jsonl file (`source`,
    `target`), or `synthetic`: sentences of two made-up languages."""
    held_out: Texts = ()
    """Texts, or files of pairs, to evaluate on; empty: one document in ten of `text`, by hash."""
    field: str = "text"
    """Text field of a JSONL record, or text column of a table."""
    separator: str = ""
    """Separator of documents inside a plain text file; empty: one document per file."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8. strict: refuse them; replace: read them as U+FFFD."""
    tokenizer: TokenizerSpec = TokenizerSpec()
    packing: Literal["concat", "document_mask"] = "concat"
    """concat: pack documents end to end; document_mask: also hide them from one another, with positions per
    document."""
    task: Task = Documents()
    """Synthetic task named by `text`, with its options."""

    @classmethod
    def implied(cls, over: dict[str, Any]) -> dict[str, Any]:
        """Add implied values: a new text drops pairs and sets the task, new pairs reset the text, and a new task sets
        the text."""
        if over.get("text") and "pairs" not in over:
            over = over | {"pairs": ""}
        elif over.get("pairs") and not {"text", "task"} & over.keys():
            over = over | {"text": (STDLIB,)}
        task = over.get("task", {})
        if not isinstance(task, dict):
            return over
        if "text" in over and "kind" not in task:
            return over | {"task": task | {"kind": _task_named(over["text"])}}
        if "text" not in over and isinstance(task.get("kind"), str):
            kind = task["kind"]
            return over | {"text": (STDLIB if kind == NO_TASK else kind,)}
        return over

    @property
    def texts(self) -> tuple[str, ...]:
        """Sources to read: the pairs, or the texts."""
        return (self.pairs,) if self.pairs else self.text

    @model_validator(mode="before")
    @classmethod
    def _text_and_task_are_one(cls, values: object) -> Any:
        """Derive a task's kind from its name as the text, and a default text from the kind."""
        if not isinstance(values, dict):
            return values
        task, text = values.get("task"), _as_list(values.get("text", STDLIB))
        given = task if isinstance(task, dict) else dump(task) if isinstance(task, Task) else {}
        kind = given.get("kind", NO_TASK)
        if not isinstance(text, (tuple, list)) or not isinstance(kind, str):
            return values
        named = _task_named(text)
        if kind == NO_TASK and named != NO_TASK:
            return values | {"task": given | {"kind": named}}
        if kind in Task.choices() and kind != NO_TASK and tuple(text) == (STDLIB,):
            return values | {"text": (kind,)}
        return values


def _task_named(text: object) -> str:
    """Return the kind of the task that a text names, or NO_TASK."""
    name = text[0] if isinstance(text, (tuple, list)) and len(text) == 1 else text
    return name if isinstance(name, str) and name in Task.choices() else NO_TASK
