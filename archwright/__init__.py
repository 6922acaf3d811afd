"""archwright: a workbench for transformer language-model architectures.

    import archwright as aw

    spec = aw.load("modern")                        # read an architecture's spec
    model = aw.build(spec.override("dim=256"))      # build a torch module from a spec
    print(aw.plan("modern", hardware="h100"))       # estimate its cost: parameters, FLOPs, memory, time
    run = aw.train("modern", "budget=60s")          # train a model on text
    aw.compare("modern", "modern:norm.kind=layer")  # compare two variants, with confidence intervals
    print(aw.generate(run, "def "))

Names are imported on first use: `import archwright` is fast, and reading specs does not import torch.
"""

import os
import sys


def _run_by_name() -> bool:
    """True if this process runs `python -m archwright` or `python -m archwright.<module>`."""
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:  # "-m" until Python has located the module
        return False
    name = sys.orig_argv[-len(sys.argv)].partition(".")[0]
    return name == "archwright" or (name.startswith("-") and name.endswith("archwright"))


if _run_by_name():
    # `-m` puts the current folder first in sys.path, so that a user's numpy.py would shadow NumPy. Remove it
    # before any further import. Folders in PYTHONPATH stay.
    try:
        if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
            del sys.path[0]
    except OSError:  # the current folder was deleted
        pass

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

__version__: str

if TYPE_CHECKING:
    from archwright.generation.sampling import sample as sample
    from archwright.generation.writing import Generated as Generated
    from archwright.generation.writing import generate as generate
    from archwright.generation.writing import stream as stream
    from archwright.inspection.probes import Probes as Probes
    from archwright.lab.compare import Interrupted as Interrupted
    from archwright.lab.compare import compare as compare
    from archwright.lab.external.study import compare_runs as compare_runs
    from archwright.model.build import build as build
    from archwright.model.build import build_layer as build_layer
    from archwright.model.model import Decoder as Decoder
    from archwright.planning.plan import plan as plan
    from archwright.plugins import register as register
    from archwright.reporting.page import write_report as write_report
    from archwright.runs.load import OpenRun as OpenRun
    from archwright.runs.load import open_run as open_run
    from archwright.spec.errors import UserError as UserError
    from archwright.spec.model_spec import ModelSpec as ModelSpec
    from archwright.spec.read import load as load
    from archwright.spec.read import load_run as load_run
    from archwright.spec.read import load_run_spec as load_run_spec
    from archwright.spec.read import load_spec as load_spec
    from archwright.spec.run_spec import RunSpec as RunSpec
    from archwright.spec.study_spec import StudySpec as StudySpec
    from archwright.training.callbacks import StopTraining as StopTraining
    from archwright.training.evaluation import evaluate_text as evaluate_text
    from archwright.training.loop import DivergedError as DivergedError
    from archwright.training.profiling import profile as profile
    from archwright.training.program import Stopped as Stopped
    from archwright.training.train import resume as resume
    from archwright.training.train import train as train

_HOMES = {
    "Decoder": "archwright.model.model",
    "DivergedError": "archwright.training.loop",
    "Generated": "archwright.generation.writing",
    "Interrupted": "archwright.lab.compare",
    "ModelSpec": "archwright.spec.model_spec",
    "OpenRun": "archwright.runs.load",
    "Probes": "archwright.inspection.probes",
    "RunSpec": "archwright.spec.run_spec",
    "StopTraining": "archwright.training.callbacks",
    "Stopped": "archwright.training.program",
    "StudySpec": "archwright.spec.study_spec",
    "UserError": "archwright.spec.errors",
    "build": "archwright.model.build",
    "build_layer": "archwright.model.build",
    "compare": "archwright.lab.compare",
    "compare_runs": "archwright.lab.external.study",
    "evaluate_text": "archwright.training.evaluation",
    "generate": "archwright.generation.writing",
    "load": "archwright.spec.read",
    "load_run": "archwright.spec.read",
    "load_run_spec": "archwright.spec.read",
    "load_spec": "archwright.spec.read",
    "open_run": "archwright.runs.load",
    "plan": "archwright.planning.plan",
    "profile": "archwright.training.profiling",
    "register": "archwright.plugins",
    "resume": "archwright.training.train",
    "sample": "archwright.generation.sampling",
    "stream": "archwright.generation.writing",
    "train": "archwright.training.train",
    "write_report": "archwright.reporting.page",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("archwright.spec.version").version()
    if name == "hf":
        return import_module("archwright.hf")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'archwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__", "hf"])
