"""Laws that every choice of an axis must obey, built-in or external. Tests and `archwright check` run them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from archwright.catalogue.axes import BASE, asks_of
from archwright.plugins import choices_of, load_parts_file
from archwright.spec.choice import Choice
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.spec.scale_down import scaled_down
from archwright.testing import (
    data_laws,
    mask_laws,
    mixer_laws,
    model_laws,
    norm_laws,
    optimizer_laws,
)
from archwright.testing.case import Case as Case
from archwright.testing.law import Broken as Broken
from archwright.testing.law import Finding as Finding
from archwright.testing.law import Law as Law
from archwright.testing.law import Laws, choice_returns, tried
from archwright.testing.law import NotTried as NotTried
from archwright.testing.law import about as about

_BUILT = (model_laws.builds,)
_REPEATS = (model_laws.builds, model_laws.nothing_is_drawn_outside_training)
_ALONE = (*_REPEATS, model_laws.nothing_sees_what_follows, model_laws.rows_do_not_meet)

LAWS_OF_MODELS: Laws = {
    model_laws.builds: (),
    model_laws.toml_returns: (),
    model_laws.shapes_and_dtypes: _BUILT,
    model_laws.shapes_on_meta: _BUILT,
    model_laws.only_parameters_are_saved: _BUILT,
    model_laws.roles_are_stated: _BUILT,
    model_laws.nothing_is_drawn_outside_training: _BUILT,
    model_laws.the_same_seed_gives_the_same_model: _REPEATS,
    model_laws.trains: _BUILT,
    model_laws.every_parameter_learns: (model_laws.builds, model_laws.trains),
    model_laws.weights_return: _REPEATS,
    model_laws.rows_do_not_meet: _REPEATS,
    model_laws.nothing_sees_what_follows: _REPEATS,
    model_laws.packed_is_alone: _ALONE,
    model_laws.padding_is_nothing: _ALONE,
    model_laws.cached_is_uncached: (*_ALONE, model_laws.shapes_and_dtypes),
    model_laws.cached_rows_of_different_lengths: (
        *_ALONE,
        model_laws.padding_is_nothing,
        model_laws.cached_is_uncached,
    ),
}
"""Laws of a small model that uses the choice."""

OF_NORMS: Laws = {norm_laws.keeps_dtype: _BUILT, norm_laws.is_finite: _BUILT}
OF_BRANCHES: Laws = {
    model_laws.costs_are_traced: _BUILT,
    mixer_laws.checkpointing_changes_nothing: (*_REPEATS, model_laws.trains),
    mixer_laws.compiles: (*_ALONE, model_laws.trains, model_laws.weights_return),
}
OF_MIXERS: Laws = {
    mixer_laws.kernels_agree: _ALONE,
    mixer_laws.long_packed_is_alone: (model_laws.packed_is_alone,),
    mixer_laws.long_padding_is_nothing: (model_laws.padding_is_nothing,),
    mixer_laws.long_cached_is_uncached: (model_laws.cached_is_uncached,),
}
OF_STATES: Laws = {
    model_laws.state_bytes_are_stated: (model_laws.builds, model_laws.cached_is_uncached)
}
OF_RECURRENCES: Laws = OF_STATES | {
    mixer_laws.chunk_size_changes_nothing: _ALONE,
    mixer_laws.forgets_at_no_fixed_token: _ALONE,
}

LAWS_OF_OBJECTIVES: Laws = {
    choice_returns: (),
    data_laws.makes_batches: (),
    data_laws.a_function_of_seed_and_step: (data_laws.makes_batches,),
    data_laws.targets_are_of_the_text: (data_laws.makes_batches,),
    data_laws.padding_is_no_text: (data_laws.makes_batches,),
    data_laws.documents_stay_apart: (data_laws.makes_batches,),
}
LAWS_OF_TASKS: Laws = {
    choice_returns: (),
    data_laws.draws_examples: (),
    data_laws.examples_follow_from_the_generator: (data_laws.draws_examples,),
}
IN_RUNS: dict[str, Laws] = {
    "objective": LAWS_OF_OBJECTIVES,
    "optimizer": {
        choice_returns: (),
        optimizer_laws.moves_all: (),
        optimizer_laws.the_loss_falls: (optimizer_laws.moves_all,),
        optimizer_laws.a_rate_of_zero_moves_nothing: (optimizer_laws.moves_all,),
        optimizer_laws.state_returns: (optimizer_laws.moves_all,),
    },
    "schedule": {
        choice_returns: (),
        optimizer_laws.shares_are_from_0_to_1: (),
        optimizer_laws.a_function_of_the_step: (optimizer_laws.shares_are_from_0_to_1,),
    },
    "task": LAWS_OF_TASKS,
}
"""Laws by run axis. They run on the choice with its default options."""
IN_MODELS: dict[str, Laws] = {
    "mask": LAWS_OF_MODELS | {mask_laws.members_follow_visible: _BUILT},
    "norm": LAWS_OF_MODELS | OF_NORMS,
    "attention": LAWS_OF_MODELS | OF_MIXERS | OF_BRANCHES,
    "recurrence": LAWS_OF_MODELS | OF_RECURRENCES | OF_MIXERS | OF_BRANCHES,
    "feedforward": LAWS_OF_MODELS | OF_BRANCHES | OF_STATES,
}
"""Laws by model axis, for axes with additional laws."""


@dataclass(frozen=True)
class Checked:
    """Findings of the laws of an axis for one choice."""

    axis: str
    kind: str
    findings: Sequence[Finding]

    @cached_property
    def good(self) -> bool:
        """True if no law is broken."""
        return all(finding.state != "broken" for finding in self.findings)


def check_file(file: Path) -> list[Checked]:
    """Check every choice that a file registers against the laws of its axis.

    Raises:
        UserError: the file is missing, raises an error, or registers no choice with a part.
    """
    load_parts_file(file)
    return [check(choice, file) for choice in choices_of(file)]


def check(choice: type[Choice], file: Path | None = None) -> Checked:
    """Check a choice, defined in `file`, against the laws of its axis."""
    laws = laws_of(choice)
    findings = tried({chosen: ()}, choice, file)
    if findings[0].state == "ok":
        findings = tried(laws, chosen(choice), file)
    return Checked(choice.axis, str(choice.model_fields["kind"].default), findings)


def laws_of(choice: type[Choice]) -> Laws:
    """Return the laws of a choice's axis."""
    return IN_RUNS.get(choice.axis) or IN_MODELS.get(choice.axis, LAWS_OF_MODELS)


def chosen(choice: type[Choice]) -> Any:
    """The choice works with its default options."""
    return choice() if choice.axis in IN_RUNS else Case(small_model(choice))


def small_model(choice: type[Choice]) -> ModelSpec:
    """Return a small model with a choice. Size-dependent options are scaled down with the model.

    Raises:
        UserError: an option has no default, or the choice is incompatible with the base model.
    """
    options = [o.removeprefix("model.") for o in asks_of(choice) if o.startswith("model.")]
    dim, head_dim, layers, context, experts = 16, 8, 2, 24, 4
    small = scaled_down(load(BASE).override(*options), dim, head_dim, layers, context, experts)
    return small.override("vocab_size=32")
