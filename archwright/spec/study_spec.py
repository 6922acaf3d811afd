"""A study as data: which variants are compared, what is held equal, and how often."""

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from archwright.spec.budget import Budget, TooMuch
from archwright.spec.choice import Tokens, Width
from archwright.spec.data import Texts
from archwright.spec.errors import UserError
from archwright.spec.run_spec import PartsFile
from archwright.spec.shown import Shown

Words = Annotated[Texts, Field(min_length=1)]

Match = Literal["non_embedding", "parameters", "flops", "none"]

TUNING_FROM = 1_000_000
"""Distance of the first tuning seed from the first compared one, at least; studies have far fewer seeds."""

COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kMBmb]?)")
SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


def parse_count(text: str) -> float:
    """Return the number that `"0.2M"`, `"200k"` or `"200000"` stands for.

    Raises:
        ValueError: not of that form, or not above zero.
    """
    match = COUNT.fullmatch(text.strip().replace("_", ""))
    if match and 1 <= (count := float(match[1]) * SCALE[match[2].lower()]) <= 1e15:
        return count
    raise ValueError('expected "auto", "given" or a number of parameters, such as "0.2M"')


def _checked_size(value: object) -> Any:
    if value not in ("auto", "given"):
        parse_count(str(value))
    return str(value)


def _checked_study_budget(value: object) -> Any:
    try:
        if (budget := Budget(str(value))).unit != "flops":
            return budget
    except TooMuch:
        raise
    except ValueError:
        pass
    raise ValueError(
        'expected wall time for all runs, such as "10m", or steps or tokens for each, such as '
        '"400steps" or "2Mtokens"'
    )


def _as_numbers(value: object) -> Any:
    """Read `2,4` or `none` as the command line has it."""
    if value == "none":
        return ()
    if isinstance(value, str):
        words = value.strip("[] ").split(",")
        if not all(word.strip().isdecimal() for word in words):
            raise ValueError("expected whole numbers, such as 2,4")
        return tuple(map(int, words))
    if isinstance(value, float):
        raise ValueError("expected whole numbers, such as 2,4")
    return (value,) if type(value) is int else value


MARGIN = re.compile(r"([0-9]*\.?[0-9]+) ?%( of| of the)?( loss| compute)?")


def _checked_margin(value: object) -> str:
    """Return a margin with its unit: `10%` is `10% of compute`."""
    match = MARGIN.fullmatch(str(value).strip())
    if match and 0 < float(match[1]) < 100 and (match[3] or not match[2]):
        unit = "the loss" if match[3] == " loss" else "compute"
        return f"{float(match[1]):g}% of {unit}"
    raise ValueError(
        'expected a share of compute, such as "10%", or of the loss, such as "1% of the loss"'
    )


Margin = Annotated[str, BeforeValidator(_checked_margin)]

Share = Annotated[float, Field(ge=0.05, lt=1)]


def _as_shares(value: object) -> Any:
    """Read `0.25,0.5`, `0.5` or `none` as the command line has it; the shortest comes first."""
    if type(value) in (int, float):
        return (float(str(value)),)
    if isinstance(value, str):
        words = [] if value == "none" else value.strip("[]() ").split(",")
        try:
            value = [float(word) for word in words if word.strip()]
        except ValueError:
            raise ValueError("expected shares of the steps, such as 0.25,0.5, or none") from None
    if isinstance(value, (list, tuple)) and all(isinstance(share, float) for share in value):
        return tuple(sorted({*value}))
    return value


def _checked_widths(widths: tuple[int, ...]) -> tuple[int, ...]:
    if len({*widths}) == 1:
        raise ValueError("expected two widths or more, such as 32,64,128")
    return tuple(sorted({*widths}))


class StudySpec(Shown):
    """A comparison of variants with a baseline. A variant is a list of words: the name of a model or recipe,
    where it is another than the baseline's, and dotted keys that it changes."""

    name: str = ""
    """Name of the study; its folder is studies/NAME."""
    question: str = ""
    """The question, in a sentence."""
    source: str = ""
    """Where the question comes from."""
    baseline: Words = ("modern",)
    """A model, recipe or TOML file, then dotted keys that the baseline changes."""
    variants: dict[str, Words] = Field(
        default_factory=dict, examples=[{"layer norm": ["norm.kind=layer"]}]
    )
    """Name -> words: `["norm.kind=layer"]` changes the baseline, `["textbook"]` names another model."""
    common: Texts = ()
    """Dotted keys that all runs share, such as `data.text=notes.txt`."""
    ends: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """After how many pairs the study ended, and after how many it does with those that --add-seeds added. An end spends
    half of what is left of the error, so that all together err no more often than one."""
    budget: Annotated[Budget, BeforeValidator(_checked_study_budget)] = Budget("10m")
    """Wall time for all runs together, or steps or tokens for each run."""
    seeds: int = Field(10, ge=2, le=1000)
    """How many pairs of runs are compared, each from other initial values and in another order of data."""
    tuning_seeds: int = Field(2, ge=1, le=1000)
    """Seeds that tune the learning rate of every variant and are not compared. The first places the rates of each
    variant; the mean over all decides."""
    first_seed: int = Field(0, ge=0, le=2**62)
    """The first of the seeds, which follow one another."""
    early_stopping: bool = True
    """Look at the study after five and seven tenths of its seeds, too. Variants that are decided then are trained no
    further."""
    horizons: Annotated[tuple[Share, ...], BeforeValidator(_as_shares)] = (0.25, 0.5)
    """Shares of the steps for which the first four pairs are trained again, at the rate that was found: they show how
    a difference changes with tokens, and how much compute it is worth. "none": train none."""
    tune_lr: bool = True
    """Tune the learning rate of each variant, or leave it as it is given."""
    lr_grid_size: int = Field(3, ge=3, le=100)
    """Learning rates in a sweep, around the best."""
    lr_ratio: float = Field(3.0, ge=1.4, le=10)
    """Between neighbouring learning rates."""
    size: Annotated[str, BeforeValidator(_checked_size)] = "auto"
    """Parameters outside embedding and head that models are scaled to, about; auto: what the budget can
    train; given: models stay as they are, as they do where dim or num_layers is given."""
    match: Match = "non_embedding"
    """Quantity made equal to the baseline's within 0.5 %, through hidden_dim, then dim, then the width of heads:
    parameters outside embedding and head, all parameters, FLOPs per token, or nothing. What a variant sets stays."""
    margin: Margin = "1% of the loss"
    """Largest difference that does not matter: a share of compute (10%) or of the baseline's loss (1% of the loss)."""
    lengths: Annotated[tuple[Tokens, ...], BeforeValidator(_as_numbers), Field(strict=False)] = ()
    """Also judge on texts this many times as long as those trained on."""
    widths: Annotated[
        tuple[Width, ...],
        BeforeValidator(_as_numbers),
        AfterValidator(_checked_widths),
        Field(strict=False),
    ] = ()
    """Widths, such as 32,64,128, at which the baseline and every variant are trained. What is found is then how far the
    best learning rate moves from the narrowest to the widest: each seed sweeps, and no losses are compared."""
    evaluation_tokens: int = Field(65_536, ge=1024, le=10**12)
    """Held-out tokens that every run is judged on, or all there are where these are fewer."""
    parallelism: Literal["processes", "none"] = "processes"
    """How runs share a CPU: one on each core, or one after another on all cores."""
    parts: Annotated[tuple[PartsFile, ...], Field(strict=False)] = ()

    @property
    def tuning_seed_numbers(self) -> range:
        """Seeds that tune learning rates for all variants, if any.

        The first one is a hash of what is compared: an unlucky seed misplaces the rates of one study, not of all.
        """
        content = json.dumps([self.baseline, self.variants, self.common]).encode()
        digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
        first = self.first_seed + TUNING_FROM + digest % TUNING_FROM
        return range(first, first + self.tuning_seeds * (self.tune_lr and not self.widths))

    @property
    def seed_numbers(self) -> range:
        """Seeds that are compared: the same ones in every study, which then share runs of one model."""
        number = self.ends[-1] if self.ends else self.seeds
        return range(self.first_seed, self.first_seed + number)

    @property
    def margin_of_loss(self) -> float | None:
        """Margin as a share of the baseline's loss; None if it is a share of compute."""
        return self._margin("the loss")

    @property
    def margin_of_compute(self) -> float | None:
        """Margin as a share of the baseline's compute; None if it is a share of the loss."""
        return self._margin("compute")

    def check_margin(self) -> None:
        """Refuse a margin of compute without shorter runs, which tell what compute is worth.

        Raises:
            UserError: One line.
        """
        if self.margin_of_compute and not (self.horizons or self.widths):
            raise UserError(
                f'margin: found "{self.margin}" without shorter runs, which tell what compute is worth; expected '
                'horizons (and steps) or a margin of the loss, such as "1% of the loss"'
            )

    def _margin(self, wanted: str) -> float | None:
        share, _, unit = self.margin.partition("% of ")
        return float(share) / 100 if unit == wanted else None

    @property
    def wall_seconds(self) -> float | None:
        """The budget as wall time for all runs; None for steps, tokens or added pairs."""
        return None if self.ends else self.budget.seconds

    def __repr__(self) -> str:
        against = f"{':'.join(self.baseline)} against {', '.join(self.variants) or 'nothing'}"
        return f"StudySpec({self.name or 'study'}: {against}; {self.seeds} seeds, budget {self.budget})"


OPTIONS = tuple(
    name
    for name in StudySpec.model_fields
    if name not in ("name", "question", "source", "baseline", "variants", "common", "ends", "parts")
)
"""Fields of a study that the command line and the library have options for."""
