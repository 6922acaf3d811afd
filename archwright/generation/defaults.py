"""How a model is sampled from where nobody says: as the folder it came from does, or plainly."""

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


def sampling(tokenizer: Tokenizer, *, has_source: bool = False, **asked: Any) -> Sampling:
    """Return settings of `Sampling`; those that are None or missing are from generation_config.json.

    It counts where its `do_sample` is true, with temperature 1 and all tokens if it says no others; false stands
    for the likeliest token where nothing is given. Where it says neither, and for values out of their limits, they
    are those of `Sampling`; for the answer to a source, the likeliest token.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    config = table(tokenizer.files, GENERATION)
    draws = config.get("do_sample")
    if not given and (draws is False or (has_source and draws is not True)):
        return Sampling(temperature=0.0)
    found = {"temperature": 1.0} | _numbers(config, *DRAWING) if draws is True else {}
    return Sampling(**found | given)


def searching(tokenizer: Tokenizer, **asked: Any) -> Searching:
    """Return settings of `Searching`; those that are None or missing are from generation_config.json, if it does not
    draw and its values are within their limits."""
    given = {name: value for name, value in asked.items() if value is not None}
    config = table(tokenizer.files, GENERATION)
    found: dict[str, Any] = {}
    if config.get("do_sample") is not True:
        found = _numbers(config, "num_beams", "length_penalty")
        if config.get("early_stopping") in (True, "never"):
            found["early_stopping"] = config["early_stopping"]
    return Searching(**found | given)


def _numbers(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the settings that are numbers within their limits."""
    numbers = {name: config[name] for name in names if type(config.get(name)) in (int, float)}
    return {name: number for name, number in numbers.items() if LIMITS[name][0](number)}
