"""How a model is sampled from where nobody says: as the folder it came from does, or plainly."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from archwright.generation.beams import MOST_BEAMS, EarlyStopping
from archwright.text.companions import GENERATION, table
from archwright.text.tokenizer import Tokenizer

TEMPERATURE = 0.8


@dataclass(frozen=True)
class Sampling:
    """Settings of `sample`."""

    temperature: float = TEMPERATURE
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class Searching:
    """Settings of `beam_search_many`."""

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


def sampling(
    tokenizer: Tokenizer,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    *,
    has_source: bool = False,
) -> Sampling:
    """Return settings with those that are None as generation_config.json has them.

    It counts where its `do_sample` is true, with temperature 1 and all tokens if it says no others; false stands
    for the likeliest token where nothing is given. Where it says neither, and for values out of their limits, they
    are those of `Sampling`; for the answer to a source, the likeliest token.
    """
    asked = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: value for name, value in asked.items() if value is not None}
    config = table(tokenizer.files, GENERATION)
    draws = config.get("do_sample")
    if not given and (draws is False or (has_source and draws is not True)):
        return Sampling(temperature=0.0)
    found: dict[str, Any] = {}
    if draws is True:
        numbers = {name: config[name] for name in LIMITS if _is_number(config.get(name))}
        found = {"temperature": 1.0} | {name: x for name, x in numbers.items() if LIMITS[name](x)}
    return Sampling(**found | given)


def searching(
    tokenizer: Tokenizer,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    early_stopping: EarlyStopping | None = None,
) -> Searching:
    """Return settings with those that are None as generation_config.json has them, if it does not draw and its values
    are within their limits; otherwise as `Searching` has them."""
    asked = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    config = table(tokenizer.files, GENERATION)
    found = {
        name: config[name]
        for name, allows in SEARCH_LIMITS.items()
        if config.get("do_sample") is not True and name in config and allows(config[name])
    }
    return Searching(**found | given)


SEARCH_LIMITS: dict[str, Callable[[Any], bool]] = {
    "num_beams": lambda x: type(x) is int and 1 <= x <= MOST_BEAMS,
    "length_penalty": lambda x: _is_number(x) and -10 <= x <= 10,
    "early_stopping": lambda x: isinstance(x, bool) or x == "never",
}


LIMITS: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda x: x == 0 or 1e-6 <= x <= 1e6,
    "top_k": lambda x: isinstance(x, int) and x >= 0,
    "top_p": lambda x: 0 < x <= 1,
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
