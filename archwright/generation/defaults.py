"""Default generation settings, from generation_config.json if there is one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archwright.generation.beams import EarlyStopping
from archwright.generation.sampling import LIMITS, Sampling
from archwright.text.companions import GENERATION, table
from archwright.text.tokenizer import Tokenizer

DRAWING = ("temperature", "top_k", "top_p", "min_p")
MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class Searching:
    """Settings of `beam_search_many`."""

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


def max_new_tokens(tokenizer: Tokenizer, number: int | None) -> int:
    """Return `number`, or the value of generation_config.json, or 256."""
    if number is not None:
        return number
    config = table(tokenizer.files, GENERATION)
    default: int = _numbers(config, "max_new_tokens").get("max_new_tokens", MAX_NEW_TOKENS)
    return default


def sampling(tokenizer: Tokenizer, *, has_source: bool = False, **settings: Any) -> Sampling:
    """Return sampling settings; generation_config.json replaces missing or None values.

    If its `do_sample` is true, its values apply, with a default temperature of 1. If `do_sample` is false, or missing
    for a model with a source, decoding is greedy unless a setting is passed. Its repetition penalty always applies.
    Values out of range are ignored.
    """
    explicit = {name: value for name, value in settings.items() if value is not None}
    config = table(tokenizer.files, GENERATION)
    draws = config.get("do_sample")
    defaults = _numbers(config, "repetition_penalty")
    greedy = draws is False or (has_source and draws is not True)
    if greedy and explicit.keys().isdisjoint(DRAWING):
        defaults["temperature"] = 0.0
    elif draws is True:
        defaults |= {"temperature": 1.0} | _numbers(config, *DRAWING)
    return Sampling(**defaults | explicit)


def searching(tokenizer: Tokenizer, **settings: Any) -> Searching:
    """Return beam-search settings; generation_config.json replaces missing or None values.

    The file is ignored if its `do_sample` is true. Values out of range are ignored.
    """
    explicit = {name: value for name, value in settings.items() if value is not None}
    config = table(tokenizer.files, GENERATION)
    defaults: dict[str, Any] = {}
    if config.get("do_sample") is not True:
        defaults = _numbers(config, "num_beams", "length_penalty")
        if config.get("early_stopping") in (True, "never"):
            defaults["early_stopping"] = config["early_stopping"]
    return Searching(**defaults | explicit)


def _numbers(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the named numeric settings, without values out of range."""
    numbers = {name: config[name] for name in names if type(config.get(name)) in (int, float)}
    return {name: number for name, number in numbers.items() if LIMITS[name][0](number)}
