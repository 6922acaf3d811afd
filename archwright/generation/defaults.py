"""Default generation settings, from generation_config.json if there is one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archwright.generation.beams import EarlyStopping
from archwright.generation.sampling import LIMITS
from archwright.text.companions import GENERATION, table
from archwright.text.tokenizer import Tokenizer

DRAWING = ("temperature", "top_k", "top_p")


@dataclass(frozen=True)
class Sampling:
    """Settings of `sample`."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class Searching:
    """Settings of `beam_search_many`."""

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


def sampling(tokenizer: Tokenizer, *, has_source: bool = False, **settings: Any) -> Sampling:
    """Return sampling settings; generation_config.json replaces missing or None values.

    If its `do_sample` is true, its values apply, with a default temperature of 1. If `do_sample` is false, or missing
    for a model with a source, decoding is greedy unless a setting is passed. Values out of range are ignored.
    """
    explicit = {name: value for name, value in settings.items() if value is not None}
    config = table(tokenizer.files, GENERATION)
    draws = config.get("do_sample")
    if not explicit and (draws is False or (has_source and draws is not True)):
        return Sampling(temperature=0.0)
    defaults = {"temperature": 1.0} | _numbers(config, *DRAWING) if draws is True else {}
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
