"""archwright check"""

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
Check files, and say all at once what is wrong in them and what to do.

  FILE.toml   a model, a run or a study: keys, types, limits, rules between axes, doubtful values
  FILE.py     choices of your own, as --parts takes them: each is held against the laws of its axis. A small
              model with it must build, train, save, show no token what follows it, read texts piece by piece
              and packed as it reads them alone; an optimizer must follow its schedule and go on bit for bit;
              batches of an objective must follow from (seed, step). The file is run, so trust it.

With --widths, MODEL KEY=VALUE ... is trained for 10 steps at each width (model.dim) on its text, by default
with 2 layers and 4 rows of 64 tokens. A table has the root mean square by which the outputs of the embedding,
each branch and the head change, for the same input. muP wants the same changes at all widths.

The exit code is 0 if all is good, 1 if a law is broken or a change is not flat, and 2 if a file cannot be
read."""

EXAMPLES = """\
  archwright check mine.toml
  archwright check my_norm.py
  archwright check my_norm.py my_mixer.py --json
  archwright check mine.toml --parts my_norm.py    a model with a norm of your own
  archwright check modern init.kind=mup optimizer.kind=muon --widths 128,256,512"""


def run(words: Sequence[str]) -> int:
    """Print what is wrong, or what is right; exit with 2 if a file is wrong, with 1 if a law is broken."""
    parser = Parser("check", ABOUT, EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a .toml file, or a .py file")
    parser.add_argument("--json", action="store_true", help="print JSON: a list with each file")
    parser.add_argument("--widths", metavar="N,N,...", help="compare changes at these widths")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds of --widths (default: 5)")
    options, parts = parser.parse_with_parts(words)
    if (options.widths, options.seeds) != (None, None):
        return _check_widths(options, parts)
    records: list[dict[str, Any]] = []
    # Choices first: a model beside them may name them.
    for file in sorted(options.files, key=lambda file: Path(file).suffix != ".py"):
        check = _check_choices if Path(file).suffix == ".py" else _check_spec
        record = check(file)
        records.append(record)
        if not options.json:
            _print(record)
    if options.json:
        print(json.dumps(records, indent=2))
    if lines := [line for record in records for line in record["mistakes"]]:
        raise UserError(*lines)
    return 0 if all(record["good"] for record in records) else 1


def _check_spec(file: str) -> dict[str, Any]:
    """Return what is wrong or doubtful in a model, a run or a study."""
    from archwright.spec.checking import checked
    from archwright.spec.read import given_model, is_study, load_study, study_names
    from archwright.spec.rules import suspicions
    from archwright.spec.toml import read_toml

    doubts: list[str] = []
    try:
        _refuse_others(file)
        if file in study_names() or (Path(file).is_file() and is_study(read_toml(Path(file)))):
            from archwright.lab.variants import arms

            arms(load_study(file), None)  # and the models that it names
        else:
            run = checked(file)
            doubts += suspicions(run.model, given_model(file))
    except UserError as error:
        mistakes = [_located(file, line) for line in error.lines]
        return {"file": file, "good": False, "mistakes": mistakes, "warnings": []}
    return {"file": file, "good": True, "mistakes": [], "warnings": doubts}


def _refuse_others(file: str) -> None:
    """Refuse a file or a folder that holds nothing to check."""
    from archwright.cli.models import is_config
    from archwright.spec.read import is_run, preset_names

    path = Path(file)
    named = any(file in preset_names(room) for room in ("models", "runs", "studies"))
    misspelt = (
        not path.exists() and not path.suffix
    )  # a preset's name, which is answered with the nearest
    if named or misspelt or path.suffix == ".toml" or is_run(file) or is_config(file):
        return
    what = "a folder that is no run" if path.is_dir() else "nothing that can be checked"
    found = what if path.exists() else "there is no such file"
    raise UserError(
        f"{file}: {found}; expected a .toml file of a model, a run or a study, or a .py file of choices"
    )


def _check_choices(file: str) -> dict[str, Any]:
    """Return what came of holding the choices of a file against the laws of their axes."""
    from archwright.inspection.laws import check_file

    try:
        found = check_file(Path(file))
    except UserError as error:
        mistakes = [line.removeprefix("--parts ") for line in error.lines]
        return {"file": file, "good": False, "mistakes": mistakes, "choices": []}
    choices = [
        {
            "axis": checked.axis,
            "kind": checked.kind,
            "good": checked.good,
            "laws": [finding.record() for finding in checked.findings],
        }
        for checked in found
    ]
    good = all(checked.good for checked in found)
    return {"file": file, "good": good, "mistakes": [], "choices": choices}


def _print(record: dict[str, Any]) -> None:
    """Print what came of a file; its mistakes are printed at the end, with those of others."""
    file = record["file"]
    for choice in record.get("choices", ()):
        print(f"{file}: {choice['axis']} {choice['kind']}")
        rows = [[law["state"], _line(law)] for law in choice["laws"] if law["state"] != "waiting"]
        if waiting := len(choice["laws"]) - len(rows):
            rows.append(["waiting", f"{waiting} more, until that is mended"])
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
    """Name the file; keys of a model's own file have no prefix there."""
    if Path(file).name in line or not Path(file).is_file():
        return line
    from archwright.spec.read import is_recipe
    from archwright.spec.toml import read_toml

    keys = set(read_toml(Path(file)))
    return f"{file}: {line if is_recipe(keys) else line.removeprefix('model.')}"


def _check_widths(options: argparse.Namespace, parts: Mapping[str, str]) -> int:
    """Print how far each part of a model moves by width; return 1 if some change is not flat."""
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
            f"{name}: {steep} of {len(growths)} changes are not flat within 25 %, so the best learning rate may move "
            "with the width. More --seeds make errors smaller; below width 128, muP is not flat either"
        )
    else:
        print(f"{name}: all changes are flat within 25 % over {study.seeds} seeds: OK")
    for line in suspicions(run.model):
        if "mup" in line:
            print(f"{name}: warning: {line}")
    return int(steep > 0)


def _requested_run(options: argparse.Namespace, parts: Mapping[str, str]) -> "RunSpec":
    """Return the run that is asked for, with few layers and tokens unless their number is given.

    With more tokens than coordinates, changes depend on the width under muP, too.
    """
    from archwright.cli.models import requested_run
    from archwright.spec.overrides import assigned
    from archwright.spec.run_spec import RunSpec

    what, *assignments = options.files
    words = argparse.Namespace(what=what, assignments=assignments, tiny=False)
    run, _ = requested_run("check", words, parts)
    if run.init.from_:
        raise UserError(f"{what}: has weights of one width; name its model")
    model, layers = run.model, run.model.layers
    whole_cycle = len((*layers.prefix, *layers.cycle, *layers.suffix))
    sizes = {
        "model.num_layers": min(model.num_layers, max(2, whole_cycle)),
        "model.context_length": min(model.context_length, 64),
        "model.vocab_size": "auto",
        "batch_size": 4,
    }
    given = assigned(RunSpec, assignments)
    return run.override(*(f"{key}={size}" for key, size in sizes.items() if key not in given))
