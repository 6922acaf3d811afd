"""results.json: results of a study, for its page and its paper kit."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from archwright.files import atomic_write
from archwright.lab.design import plan_file
from archwright.lab.design.plan import variant_file
from archwright.lab.procedure.spikes import Spikes
from archwright.lab.results import StudyResults
from archwright.spec.errors import UserError
from archwright.spec.read import read_run
from archwright.spec.run_spec import RunSpec

RESULTS = "results.json"


def save_results(results: StudyResults, folder: str | Path) -> None:
    """Write results into a study's folder, without sums over documents."""
    values = asdict(results) | {"study": results.study.model_dump(mode="json")}
    for run in (*values["runs"], *values["shorter_runs"]):
        run["halves"] = None
    places = {(r.key, r.variant): i for i, r in enumerate(results.runs)}
    for found in values["replicates"]:
        found["best"] = places[found["best"]["key"], found["variant"]]
    atomic_write(Path(folder) / RESULTS, json.dumps(values, ensure_ascii=False))


def open_study(path: str | Path) -> StudyResults:
    """Read the results in a study's folder. Texts and runs are not read.

    Raises:
        UserError: Missing or damaged results, or results of another version.
    """
    file = Path(path) / RESULTS
    again = "repeat the study's compare command, which writes it and trains no finished run again"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        for found in values["replicates"]:
            found["best"] = values["runs"][found["best"]]
        adapter = TypeAdapter(StudyResults)
        adapter.rebuild(_types_namespace={"Spikes": Spikes})
        results = adapter.validate_json(json.dumps(values))
    except FileNotFoundError:
        raise UserError(
            f"{path}: found no {RESULTS}; expected the folder of a study: {again}"
        ) from None
    except (ValueError, LookupError, TypeError, RecursionError, ValidationError):
        raise UserError(f"{file}: damaged, or written by another version: {again}") from None
    return replace(results, folder=str(path))


def runs_of_variants(path: str | Path) -> Mapping[str, RunSpec]:
    """Return the run of each variant by a study's plan, the baseline first."""
    names = [arm.name for arm in plan_file.read(Path(path)).arms]
    return {name: read_run(Path(path) / variant_file(names, name)) for name in names}
