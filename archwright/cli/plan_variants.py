"""From the words of `archwright plan` to models."""

from collections.abc import Sequence

from archwright.cli.models import load_recipe
from archwright.lab.variants import Named, is_variant, run_key, split
from archwright.spec.errors import UserError
from archwright.spec.rules import enforce
from archwright.spec.run_spec import RunSpec


def variants(words: Sequence[str]) -> dict[str, RunSpec]:
    """Return the runs of models and variants by name, in order; KEY=VALUE of its own word holds for all.

    Raises:
        UserError: no model, a name twice, or mistakes in one, one line each.
    """
    common = [run_key(word) for word in words if not is_variant(word)]
    named = [word for word in words if is_variant(word)]
    if not named or named[0].startswith(":"):
        raise UserError("plan what? Name a model first, such as: archwright plan llama-3-8b")
    baseline, found = Named.of(split(named[0])), dict[str, RunSpec]()
    lines: list[str] = []
    for word in named:
        if word in found:
            lines.append(f'"{word}" is named twice')
            continue
        try:
            each = Named.of(split(word.removeprefix(":")), baseline)
            run = load_recipe(each.name, weights=True).override(*common)
            for keys in each.groups:
                run = run.override(*keys)
            enforce(run.model)
            found[word] = run
        except UserError as error:
            lines += error.lines
    if lines:
        raise UserError(*dict.fromkeys(lines))
    return found
