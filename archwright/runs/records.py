"""Schemas of records and environments; files may be damaged or edited by hand."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

Record = dict[str, Any]

Count = Annotated[int, Field(ge=0, lt=2**53)]
Some = Annotated[int, Field(gt=0, lt=2**53)]
Whole = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, lt=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Whole | Finite | None
"""A measurement; null if it was not finite."""


class _Entry(BaseModel):
    """Base of entries; further fields may have any value."""

    model_config = ConfigDict(strict=True, extra="allow", defer_build=True)


class _Any(_Entry):
    """A record of any kind."""

    kind: str
    step: Count
    tokens: Count = 0
    seconds: Seconds = 0.0
    cpu_seconds: Seconds = 0.0
    name: str = ""
    text: str = ""


class _Train(_Any):
    tokens: Count
    seconds: Seconds
    loss: Number = None
    z_loss: Number = None
    router_loss: Number = None
    second_loss: Number = None
    grad_norm: Number = None
    lr: Number = None
    tokens_per_second: Number = None
    utilisation: Number = None
    memory_bytes: Number = None
    progress: Share = 0.0


class _Evaluation(_Any):
    tokens: Count
    seconds: Seconds
    nats_per_token: Number
    perplexity: Number
    bits_per_byte: Number = None
    num_tokens: Some
    num_bytes: Count
    accuracy: Number = None
    num_answers: Count | None = None
    token_accuracy: Number = None
    second_loss: Number = None
    second_accuracy: Number = None
    tuning: Number = None
    # Not `tokens`, the number of training tokens.
    judged_tokens: list[Some] = Field(default_factory=list)
    judged_nats: list[Number] = Field(default_factory=list)


class _Baseline(_Any):
    name: str
    bits_per_byte: Finite
    num_bytes: Count = 0


class _Event(_Any):
    name: str


class _Length(_Any):
    name: Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
    nats_per_token: Number = None


class _Probes(_Any):
    tokens: Count
    seconds: Seconds
    values: dict[str, dict[str, Number]]


_KINDS: dict[str, type[_Any]] = {
    "train": _Train,
    "eval": _Evaluation,
    "baseline": _Baseline,
    "event": _Event,
    "length": _Length,
    "probes": _Probes,
}


def read_record(line: bytes) -> Record | None:
    """Return the record in a line of JSON, None if invalid."""
    try:
        record = from_json(line, allow_inf_nan=False)
        kind = record["kind"] if isinstance(record, dict) else None
        _KINDS.get(kind if isinstance(kind, str) else "", _Any).model_validate(record)
    except (ValueError, KeyError):
        return None
    return dict(record)


class _Text(_Entry):
    num_tokens: Some
    num_documents: Count
    num_bytes: Count
    store: str
    text: str


class _Task(_Entry):
    name: str
    floor: Finite
    chance: Finite
    num_held_out: Some


class _Data(_Entry):
    train: _Text
    held_out: _Text
    task: _Task | None = None
    files_skipped: Count
    tokenizer: str


class _Decision(_Entry):
    value: str | bool | Number
    reason: str


class _TimeBudget(_Entry):
    spent: Seconds
    ending: Seconds
    training: Annotated[float, Field(gt=0, lt=1e12)]


_Other = str | bool | Number | list[Any] | dict[str, Any]
_ENVIRONMENT: dict[str, Any] = {
    "num_parameters": Count,
    "flops_per_token": Annotated[float, Field(ge=0, lt=1e30)],
    "peak_flops": dict[str, Annotated[float, Field(gt=0, lt=1e30)]],
    "decisions": dict[str, _Decision],
    "data": _Data,
    "time_budget": _TimeBudget,
    "progress": dict[
        Annotated[str, Field(pattern=r"^\d{1,12}$")], Annotated[float, Field(gt=0, le=1)]
    ],
}


def well_formed(environment: Mapping[str, object]) -> tuple[Record, list[str]]:
    """Return the valid entries of an environment, and the names of invalid ones."""
    valid, damaged = {}, []
    for key, value in environment.items():
        try:
            _adapter(key).validate_python(value, strict=True)
            valid[key] = value
        except ValidationError:
            damaged.append(key)
    return valid, damaged


@cache
def _adapter(key: str) -> TypeAdapter[Any]:
    return TypeAdapter(_ENVIRONMENT.get(key, Count if key.endswith("bytes") else _Other))
