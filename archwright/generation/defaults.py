"""How a model is sampled from where nobody says: as the folder it came from does, or plainly."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from archwright.text.companions import GENERATION, table
from archwright.text.tokenizer import Tokenizer

TEMPERATURE = 0.8


@dataclass(frozen=True)
class Sampling:
    """Settings of `sample`."""

    temperature: float = TEMPERATURE
    top_k: int = 0
    top_p: float = 1.0


def sampling(
    tokenizer: Tokenizer,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Sampling:
    """Return settings with those that are None as generation_config.json has them.

    It counts where its `do_sample` is true, with temperature 1 and all tokens if it says no others; false stands
    for the likeliest token where nothing is given. Where it says neither, and for values out of their limits, they
    are those of `Sampling`.
    """
    asked = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: value for name, value in asked.items() if value is not None}
    config = table(tokenizer.files, GENERATION)
    if config.get("do_sample") is False and not given:
        return Sampling(temperature=0.0)
    return Sampling(**_checkpoint_sampling(config) | given)


LIMITS: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda x: 0 <= x < math.inf,
    "top_k": lambda x: isinstance(x, int) and x >= 0,
    "top_p": lambda x: 0 < x <= 1,
}


def _checkpoint_sampling(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("do_sample") is not True:
        return {}
    found = {name: config[name] for name in LIMITS if _is_number(config.get(name))}
    return {"temperature": 1.0} | {name: x for name, x in found.items() if LIMITS[name](x)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
