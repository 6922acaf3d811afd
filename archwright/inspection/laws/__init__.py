"""Laws: what every choice of an axis must do, from the package or from outside. Tests and `archwright check` try the
same functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from archwright.catalogue.axes import BASE, asks_of
from archwright.inspection.laws import models, norms, objectives, optimizers
from archwright.inspection.laws.case import Case as Case
from archwright.inspection.laws.law import Broken as Broken
from archwright.inspection.laws.law import Finding as Finding
from archwright.inspection.laws.law import Law as Law
from archwright.inspection.laws.law import Laws, tried
from archwright.inspection.laws.law import NotTried as NotTried
from archwright.inspection.laws.law import about as about
from archwright.inspection.laws.toml import choice_returns
from archwright.plugins import choices_of, load_parts_file
from archwright.spec.choice import Choice
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.spec.scale_down import scaled_down

_BUILT = (models.builds,)
_REPEATS = (models.builds, models.nothing_is_drawn_outside_training)
_ALONE = (*_REPEATS, models.nothing_sees_what_follows, models.rows_do_not_meet)

LAWS_OF_MODELS: Laws = {
    models.builds: (),
    models.toml_returns: (),
    models.shapes_and_dtypes: _BUILT,
    models.shapes_on_meta: _BUILT,
    models.only_parameters_are_saved: _BUILT,
    models.nothing_is_drawn_outside_training: _BUILT,
    models.the_same_seed_gives_the_same_model: _REPEATS,
    models.trains: _BUILT,
    models.every_parameter_learns: (models.builds, models.trains),
    models.weights_return: _REPEATS,
    models.rows_do_not_meet: _REPEATS,
    models.nothing_sees_what_follows: _REPEATS,
    models.packed_is_alone: _ALONE,
    models.padding_is_nothing: _ALONE,
    models.cached_is_uncached: _ALONE,
    models.cached_rows_of_different_lengths: (
        *_ALONE,
        models.padding_is_nothing,
        models.cached_is_uncached,
    ),
}
"""Laws of a small model with a choice in it."""

OF_NORMS: Laws = {norms.keeps_dtype: _BUILT, norms.is_finite: _BUILT}
OF_BRANCHES: Laws = {models.flops_are_stated: _BUILT}
OF_STATES: Laws = {models.state_bytes_are_stated: (models.builds, models.cached_is_uncached)}

LAWS_OF_OBJECTIVES: Laws = {
    choice_returns: (),
    objectives.makes_batches: (),
    objectives.a_function_of_seed_and_step: (objectives.makes_batches,),
    objectives.targets_are_of_the_text_in_its_order: (objectives.makes_batches,),
    objectives.padding_is_no_text: (objectives.makes_batches,),
    objectives.packed_is_the_same_text: (objectives.a_function_of_seed_and_step,),
}
LAWS_OF_TASKS: Laws = {
    choice_returns: (),
    objectives.draws_examples: (),
    objectives.examples_follow_from_the_generator: (objectives.draws_examples,),
}
LAWS_OF_OPTIMIZERS: Laws = {
    choice_returns: (),
    optimizers.moves_all: (),
    optimizers.the_loss_falls: (optimizers.moves_all,),
    optimizers.a_rate_of_zero_moves_nothing: (optimizers.moves_all,),
    optimizers.state_returns: (optimizers.moves_all,),
}
LAWS_OF_SCHEDULES: Laws = {
    choice_returns: (),
    optimizers.shares_are_from_0_to_1: (),
    optimizers.a_function_of_the_step: (optimizers.shares_are_from_0_to_1,),
}

IN_RUNS: dict[str, Laws] = {
    "objective": LAWS_OF_OBJECTIVES,
    "optimizer": LAWS_OF_OPTIMIZERS,
    "schedule": LAWS_OF_SCHEDULES,
    "task": LAWS_OF_TASKS,
}
"""Laws of the axes of a run, by name: they are tried on the choice with its defaults."""
IN_MODELS: dict[str, Laws] = {
    "norm": LAWS_OF_MODELS | OF_NORMS,
    "attention": LAWS_OF_MODELS | OF_BRANCHES,
    "recurrence": LAWS_OF_MODELS | OF_BRANCHES | OF_STATES,
    "feedforward": LAWS_OF_MODELS | OF_BRANCHES,
}
"""Laws of the axes of a model with some beside those of all."""


@dataclass(frozen=True)
class Checked:
    """A choice, and what came of trying the laws of its axis."""

    axis: str
    kind: str
    findings: Sequence[Finding]

    @cached_property
    def good(self) -> bool:
        """Whether no law is broken."""
        return all(finding.state != "broken" for finding in self.findings)


def check_file(file: Path) -> list[Checked]:
    """Try the laws of its axis on each choice that a file of choices registers.

    Raises:
        UserError: the file is missing, fails, or has no choice with a part, in one line.
    """
    load_parts_file(file)
    return [check(choice, file) for choice in choices_of(file)]


def check(choice: type[Choice], file: Path | None = None) -> Checked:
    """Try the laws of its axis on a choice; `file` is the one that it is in."""
    laws = laws_of(choice)
    findings = tried({chosen: ()}, choice, file)
    if findings[0].state == "ok":
        findings = tried(laws, chosen(choice), file)
    return Checked(choice.axis, str(choice.model_fields["kind"].default), findings)


def laws_of(choice: type[Choice]) -> Laws:
    """Return the laws of a choice's axis."""
    return IN_RUNS.get(choice.axis) or IN_MODELS.get(choice.axis, LAWS_OF_MODELS)


def chosen(choice: type[Choice]) -> Any:
    """It can be chosen with its default options."""
    return choice() if choice.axis in IN_RUNS else Case(small_model(choice))


def small_model(choice: type[Choice]) -> ModelSpec:
    """Return a model with a choice, small enough for laws; options that follow sizes are scaled down with it.

    Raises:
        UserError: an option without a default, or rules that refuse the choice beside those of the base.
    """
    asks = [ask.removeprefix("model.") for ask in asks_of(choice) if ask.startswith("model.")]
    dim, head_dim, layers, context, experts = 16, 8, 2, 24, 4
    small = scaled_down(load(BASE).override(*asks), dim, head_dim, layers, context, experts)
    return small.override("vocab_size=32")
