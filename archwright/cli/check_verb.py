"""The command `archwright check`: check models, runs, studies and choices for mistakes."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archwright.cli.parser import Parser, as_options, print_table
from archwright.format import columns, percent, significant
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.spec.run_spec import RunSpec

ABOUT = """\
Check files and report all mistakes, with suggested fixes.

  FILE.toml   a model, a run or a study: keys, types, limits, rules between axes, doubtful values
  FILE.py     your own choices for --parts: each must obey the laws of its axis. A small model with it must
              build, train, save, hide later tokens from earlier ones, and compute the same outputs for a
              sequence alone, in chunks and packed. An optimizer must follow its schedule and resume bit for
              bit. Batches of an objective must depend only on (seed, step). The file is executed, so trust
              it.

With --widths, MODEL KEY=VALUE ... is trained for 10 steps at each width (model.dim) on its text, by default
with 2 layers and 4 sequences of 64 tokens. The table has the root-mean-square changes of the outputs of the
embedding, each branch and the head, for the same input. Under muP, changes are the same at all widths.

The exit code is 0 if all checks pass, 1 if a law is broken or a change is not flat, and 2 if there are
mistakes in a file."""

EXAMPLES = """\
  archwright check mine.toml
  archwright check my_norm.py
  archwright check my_norm.py my_mixer.py --json
  archwright check mine.toml --parts my_norm.py    a model with your own norm
  archwright check modern init.kind=mup optimizer.kind=muon --widths 128,256,512"""


def run(words: Sequence[str]) -> int:
    """Print the results of checks; return 1 if a choice breaks a law."""
    parser = Parser("check", ABOUT, EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a .toml file, or a .py file")
    parser.add_argument("--json", action="store_true", help="print JSON: a list of files")
    parser.add_argument("--widths", metavar="N,N,...", help="compare changes at these widths")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds of --widths (default: 5)")
    options, parts = parser.parse_with_parts(words)
    if (options.widths, options.seeds) != (None, None):
        return _check_widths(options, parts)
    records: list[dict[str, Any]] = []
    # Python files first: models among the files may use their choices.
    for file in sorted(options.files, key=_is_code, reverse=True):
        check = _check_choices if _is_code(file) else _check_spec
        record = check(file)
        records.append(record)
        if not options.json:
            _print(record)
    if options.json:
        print(json.dumps(records, indent=2))
    if lines := [line for record in records for line in record["mistakes"]]:
        raise UserError(*lines)
    return 0 if all(record["good"] for record in records) else 1


def _is_code(file: str) -> bool:
    """True for a Python file, and for a folder with a package."""
    return Path(file).suffix == ".py" or Path(file, "__init__.py").is_file()


def _check_spec(file: str) -> dict[str, Any]:
    """Return the mistakes and warnings of a model, run or study."""
    from archwright.spec.checking import checked
    from archwright.spec.read import given_model, is_study, load_study, study_names
    from archwright.spec.rules import suspicions
    from archwright.spec.toml import read_toml

    doubts: list[str] = []
    try:
        _refuse_others(file)
        if file in study_names() or (Path(file).is_file() and is_study(read_toml(Path(file)))):
            from archwright.lab.design.variants import arms

            arms(load_study(file), None)  # checks its models as well
        else:
            run = checked(file)
            doubts += suspicions(run.model, given_model(file))
    except UserError as error:
        mistakes = [_located(file, line) for line in error.lines]
        return {"file": file, "good": False, "mistakes": mistakes, "warnings": []}
    return {"file": file, "good": True, "mistakes": [], "warnings": doubts}


def _refuse_others(file: str) -> None:
    """Raise a UserError unless a file or a folder can be checked."""
    from archwright.cli.models import is_config
    from archwright.spec.read import is_run, preset_names

    path = Path(file)
    named = any(file in preset_names(room) for room in ("models", "runs", "studies"))
    misspelt = (
        not path.exists() and not path.suffix
    )  # a preset's name: a later error suggests the nearest one
    if named or misspelt or path.suffix == ".toml" or is_run(file) or is_config(file):
        return
    what = "a folder that is no run" if path.is_dir() else "nothing that can be checked"
    problem = what if path.exists() else "there is no such file"
    raise UserError(
        f"{file}: {problem}; expected a .toml file of a model, a run or a study, or a .py file of choices"
    )


def _check_choices(file: str) -> dict[str, Any]:
    """Check the choices of a Python file against their laws."""
    from archwright.testing import check_file

    try:
        checks = check_file(Path(file))
    except UserError as error:
        mistakes = [line.removeprefix("--parts ") for line in error.lines]
        return {"file": file, "good": False, "mistakes": mistakes, "choices": []}
    choices = [
        {
            "axis": check.axis,
            "kind": check.kind,
            "good": check.good,
            "laws": [finding.record() for finding in check.findings],
        }
        for check in checks
    ]
    good = all(check.good for check in checks)
    return {"file": file, "good": good, "mistakes": [], "choices": choices}


def _print(record: dict[str, Any]) -> None:
    """Print a file's results; mistakes of all files are printed last."""
    file = record["file"]
    for choice in record.get("choices", ()):
        print(f"{file}: {choice['axis']} {choice['kind']}")
        rows = [[law["state"], _line(law)] for law in choice["laws"] if law["state"] != "waiting"]
        if waiting := len(choice["laws"]) - len(rows):
            rows.append(["waiting", f"{waiting} more, until that is fixed"])
        print_table(rows)
    if record["good"]:
        print(f"{file}: OK")
    elif broken := [
        law for c in record.get("choices", ()) for law in c["laws"] if law["state"] == "broken"
    ]:
        print(f"{file}: {len(broken)} {'laws are' if broken[1:] else 'law is'} broken")
    for line in record.get("warnings", ()):
        print(f"{file}: warning: {line}")


def _line(law: dict[str, str]) -> str:
    return f"{law['about']}: {law['found']}" if law["found"] else law["about"]


def _located(file: str, line: str) -> str:
    """Prefix a mistake with its file; drop `model.` for model files."""
    if Path(file).name in line or not Path(file).is_file():
        return line
    from archwright.spec.read import is_recipe
    from archwright.spec.toml import read_toml

    keys = set(read_toml(Path(file)))
    return f"{file}: {line if is_recipe(keys) else line.removeprefix('model.')}"


def _check_widths(options: argparse.Namespace, parts: Mapping[str, str]) -> int:
    """Print the change of each part's output for every width; return 1 if a change depends on the width."""
    from archwright.progress import Progress
    from archwright.spec.rules import suspicions
    from archwright.spec.study_spec import StudySpec

    seeds = 5 if options.seeds is None else options.seeds
    try:
        study = StudySpec().override(f"widths={options.widths or 'none'}", f"seeds={seeds}")
    except UserError as error:
        raise as_options(error, ("widths", "seeds")) from None
    if not study.widths:
        raise UserError("--widths: expected two widths or more, such as 128,256,512")
    name, run = options.files[0], _requested_run(options, parts)
    from archwright.training.coordinate_check import coordinate_check

    with Progress("Checking widths", 1.0) as progress:
        growths = coordinate_check(run, study.widths, study.seeds, progress.reached)
    steep = sum(not growth.is_flat for growth in growths)
    if options.json:
        records = [growth._asdict() | {"flat": growth.is_flat} for growth in growths]
        record = {"model": name, "seeds": study.seeds, "good": not steep, "parts": records}
        print(json.dumps(record, indent=2))
        return int(steep > 0)
    rows = [["steps", "part", *(f"dim {width}" for width in study.widths), "growth", "error", ""]]
    for growth in growths:
        numbers = (*map(significant, growth.changes.values()), f"{growth.growth:.2f}")
        state = "OK" if growth.is_flat else "not flat"
        rows.append([str(growth.steps), growth.part, *numbers, percent(growth.error), state])
    print("\n".join(columns(rows, right=(0, *range(2, len(rows[0]) - 1)))) + "\n")
    if steep:
        print(
            f"{name}: {steep} of {len(growths)} changes are not flat within 25 %, so the best learning rate may depend "
            "on the width. More --seeds make errors smaller; below width 128, muP is not flat either"
        )
    else:
        print(f"{name}: all changes are flat within 25 % over {study.seeds} seeds: OK")
    for line in suspicions(run.model):
        if "mup" in line:
            print(f"{name}: warning: {line}")
    return int(steep > 0)


def _requested_run(options: argparse.Namespace, parts: Mapping[str, str]) -> "RunSpec":
    """Return the requested run with small sizes; sizes assigned by the user are kept.

    The batch is small, because changes depend on the width even under muP if a batch has more tokens than `dim`.
    """
    from archwright.cli.models import requested_run
    from archwright.spec.overrides import assigned
    from archwright.spec.run_spec import RunSpec

    what, *assignments = options.files
    words = argparse.Namespace(what=what, assignments=assignments, tiny=False)
    run, _ = requested_run("check", words, parts)
    if run.init.from_:
        raise UserError(f"{what}: has weights of one width; give its model instead")
    model, layers = run.model, run.model.layers
    whole_cycle = len((*layers.prefix, *layers.cycle, *layers.suffix))
    sizes = {
        "model.num_layers": min(model.num_layers, max(2, whole_cycle)),
        "model.context_length": min(model.context_length, 64),
        "model.vocab_size": "auto",
        "batch_size": 4,
    }
    assigned_keys = assigned(RunSpec, assignments)
    return run.override(*(f"{k}={size}" for k, size in sizes.items() if k not in assigned_keys))
