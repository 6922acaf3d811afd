"""Commands as documents have them, read by the words and specs of the verbs; nothing is trained or written."""

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from archwright.cli.choices_table import print_choices_of
from archwright.cli.listings import FOLDER
from archwright.cli.main import VERBS
from archwright.cli.models import load_model, load_recipe
from archwright.cli.parser import Parser
from archwright.cli.plan_variants import variants
from archwright.cli.plan_verb import HARDWARE
from archwright.lab.design.command_line import study_of
from archwright.lab.design.planner import USUAL_SIZE
from archwright.lab.design.variants import arms, is_variant, sized_by_user
from archwright.lab.running.where import Where
from archwright.planning.workload import workload
from archwright.spec.read import preset_names
from archwright.spec.rules import enforce
from archwright.spec.run_rules import enforce_run
from archwright.spec.scale_down import tiny_run
from archwright.spec.study_spec import OPTIONS, parse_count

FOLDERS = re.compile(r"(runs|hf)/[\w.-]+")
"""Runs and checkpoints, of which a document's reader has made some, are read as `modern`."""
OWN = ("mine.toml",)
"""Files of the reader's own, read as `modern`, too."""


class _Parsed(Exception):  # noqa: N818
    """The words were read; what follows would act."""


def commands(text: str) -> list[str]:
    """Return each command of a document once: lines of its blocks, and what stands between backticks; those with
    words to fill in, and with files of choices that a test of their own writes, are left out."""
    found = re.findall(
        r"^(?:\$ )?(archwright [a-z]+ .*)$|`(archwright [a-z]+ [^`\n]+)`", text, re.MULTILINE
    )
    lines = [block or inline for block, inline in found]
    given = [line for line in lines if not re.search(r"\b[A-Z]{3,}\b|--parts", line)]
    return [*dict.fromkeys(given)]


def read(line: str, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Return the options of a command whose models, variants, values and choices are there.

    Raises:
        UserError: a mistake in it.
    """
    program, verb, *words = shlex.split(line, comments=True)
    assert program == "archwright"
    options = _parsed(verb, words, monkeypatch)
    checks = {
        "train": _train,
        "prepare": _prepare,
        "compare": _compare,
        "plan": _plan,
        "profile": _profile,
        "show": _show,
        "diff": _diff,
        "list": _list,
    }
    if verb in checks and "--help" not in words:
        checks[verb](options)
    return options


def _parsed(verb: str, words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    assert verb in VERBS, verb
    parse, found = Parser.parse, []

    def stop(parser: Parser, given: Sequence[str]) -> argparse.Namespace:
        found.append(parse(parser, given))
        raise _Parsed

    with monkeypatch.context() as patched:
        patched.setattr(Parser, "parse", stop)
        with pytest.raises(SystemExit if "--help" in words else _Parsed) as end:
            import_module(f"archwright.cli.{verb}_verb").run(words)
    if isinstance(end.value, SystemExit):
        assert end.value.code == 0
        return argparse.Namespace()
    return found[0]


def _there(name: str) -> str:
    return "modern" if FOLDERS.fullmatch(name) or name in OWN else name


def _train(options: argparse.Namespace) -> None:
    if not options.resume:
        _prepare(options)


def _prepare(options: argparse.Namespace) -> None:
    run = load_recipe(_there(options.what))
    enforce_run((tiny_run(run) if options.tiny else run).override(*options.assignments))


def _compare(options: argparse.Namespace) -> None:
    given = {name: getattr(options, name) for name in OPTIONS}
    study = study_of(*map(_there, options.what), **given)
    Where(options.on or "", options.workers, ",".join(options.slurm)).check(study)
    if study.size == "given" or (study.size == "auto" and sized_by_user(study)):
        size = None
    else:
        size = USUAL_SIZE if study.size == "auto" else parse_count(study.size)
    assert len(arms(study, size)) > 1


def _plan(options: argparse.Namespace) -> None:
    keys = [word for word in options.what if word.startswith(HARDWARE)]
    assert variants([_there(word) for word in options.what if word not in keys])
    workload(
        hardware="h100" if options.hardware in ("this", *OWN) else options.hardware,
        hardware_keys=[key.removeprefix(HARDWARE) for key in keys],
        devices=options.devices or 8,
        precision=options.precision,
        tokens=options.tokens,
        batch=options.batch,
        context=options.context,
        mfu=options.mfu,
        price=options.price,
    )


def _profile(options: argparse.Namespace) -> None:
    assert options.model not in preset_names("runs")
    words = [_there(options.model), *options.assignments]
    if any(map(is_variant, options.assignments)):
        assert len(variants(words)) > 1
    else:
        enforce_run(load_recipe(words[0]).override(*options.assignments))


def _show(options: argparse.Namespace) -> None:
    spec = load_model(_there(options.model)).spec
    enforce((spec.tiny() if options.tiny else spec).override(*options.assignments))


def _diff(options: argparse.Namespace) -> None:
    old, changes = load_model(_there(options.old)).spec, [*options.assignments]
    if "=" in options.new:
        new, changes = old, [options.new, *changes]
    else:
        new = load_model(_there(options.new)).spec
    new = new.override(*changes)
    enforce(new)
    assert new != old


def _list(options: argparse.Namespace) -> None:
    if options.words[:1] == ["choices"] and options.words[1:]:
        print_choices_of(options.words[1], _choices())


@cache
def _choices() -> Any:
    return json.loads((FOLDER / "choices.json").read_text("utf-8"))


def linked_files(page: Path) -> list[Path]:
    """Return the files that a page links to."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    return [(page.parent / link).resolve() for link in links]
