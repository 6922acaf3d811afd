"""Models and variants on the command line of `archwright plan`."""

from collections.abc import Sequence

from archwright.cli.models import load_recipe
from archwright.lab.design.variants import Named, is_variant, run_key, split
from archwright.spec.errors import UserError
from archwright.spec.rules import enforce
from archwright.spec.run_spec import RunSpec


def variants(words: Sequence[str]) -> dict[str, RunSpec]:
    """Return the runs of models and variants by name. A word KEY=VALUE changes all of them.

    Raises:
        UserError: no model, a repeated name, or mistakes in a model.
    """
    common = [run_key(word) for word in words if not is_variant(word)]
    named = [word for word in words if is_variant(word)]
    if not named or named[0].startswith(":"):
        raise UserError("plan what? Name a model first, such as: archwright plan llama-3-8b")
    baseline, runs = Named.of(split(named[0])), dict[str, RunSpec]()
    lines: list[str] = []
    for word in named:
        if word in runs:
            lines.append(f'"{word}" is named twice')
            continue
        try:
            variant = Named.of(split(word.removeprefix(":")), baseline)
            run = load_recipe(variant.name, weights=True).override(*common)
            for keys in variant.groups:
                run = run.override(*keys)
            enforce(run.model)
            runs[word] = run
        except UserError as error:
            lines += error.lines
    if lines:
        raise UserError(*dict.fromkeys(lines))
    return runs
