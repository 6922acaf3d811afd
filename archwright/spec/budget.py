"""Training budgets: time, steps, tokens, tokens per parameter, or FLOPs."""

import math
import re
from typing import Any, Literal, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from archwright.spec.errors import UserError

Unit = Literal["seconds", "steps", "tokens", "xparams", "flops"]

AMOUNT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]+)\s*")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
MOST = {
    "seconds": 100 * 365.25 * 86400,
    "steps": 1e12,
    "tokens": 1e16,
    "xparams": 1e9,
    "flops": 1e30,
}
"""Largest plausible budgets: a hundred years, and ten thousand times the largest known runs."""


class TooMuch(ValueError):  # noqa: N818
    """A budget above the largest plausible one."""


class Budget(str):
    """A text such as `"3m"`, `"400steps"`, `"10Mtokens"`, `"20xparams"` or `"1e15flops"`, with its amount and unit.

    Raises:
        ValueError: Another form, not above zero, or above the largest plausible budget.
    """

    amount: float
    unit: Unit

    def __new__(cls, text: str) -> Self:
        self = super().__new__(cls, text)
        self.amount, self.unit = parse_budget(text)
        return self

    @property
    def seconds(self) -> float | None:
        """The budget as wall time; None for other units."""
        return self.amount if self.unit == "seconds" else None

    def steps(
        self,
        tokens_per_step: int,
        flops_per_token: float,
        *,
        num_parameters: int = 0,
    ) -> int:
        """Return the number of steps, at least one, of a budget that is not in time.

        Args:
            num_parameters: Parameters of the model, for a budget in tokens per parameter.

        Raises:
            UserError: More steps than any plausible run.
        """
        assert self.unit != "seconds", "a budget in time has no number of steps"
        per_step = {
            "steps": 1.0,
            "tokens": float(tokens_per_step),
            "xparams": tokens_per_step / max(1, num_parameters),
            "flops": flops_per_token * tokens_per_step,
        }[self.unit]
        if self.amount / per_step > MOST["steps"]:
            raise UserError(
                f"budget: {self} pays for {self.amount / per_step:.0e} steps; expected at most 1e12"
            )
        return max(1, math.floor(self.amount / per_step + 1e-9))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(str(value))
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string"}


def parse_budget(text: str) -> tuple[float, Unit]:
    """Split a budget into its amount and unit; see `Budget`."""
    amount, unit = _amount(text)
    if amount > MOST[unit]:
        most = (
            "a hundred years" if unit == "seconds" else f"{MOST[unit]:.0e}{unit}".replace("+", "")
        )
        raise TooMuch(f"expected at most {most}")
    if amount > 0:
        return amount, unit
    raise ValueError(
        'expected an amount with a unit, such as "3m", "400steps", "10Mtokens", "20xparams" or "1e15flops"'
    )


def _amount(text: str) -> tuple[float, Unit]:
    """Return an amount and its unit; 0 seconds for a text of another form."""
    if re.fullmatch(r"\s*(?:[0-9]+[dhms]\s*){2,}", text):  # 1h30m
        return sum(float(n) * SECONDS[unit] for n, unit in AMOUNT.findall(text)), "seconds"
    if match := AMOUNT.fullmatch(text):
        amount, unit = float(match[1].replace("_", "")), match[2]
        if unit in SECONDS:
            return amount * SECONDS[unit], "seconds"
        if unit == "xparams":
            return amount, "xparams"
        names: tuple[Unit, ...] = ("steps", "tokens", "flops")
        for name in names:
            scale = unit.removesuffix(name)
            if unit.endswith(name) and scale in SCALES and amount * SCALES[scale] >= 1:
                return amount * SCALES[scale], name
    return 0.0, "seconds"
