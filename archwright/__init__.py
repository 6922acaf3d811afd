"""archwright: the workbench for transformer language-model architectures.

    import archwright as aw

    spec = aw.load("modern")                        # an architecture is data
    model = aw.build(spec.override("dim=256"))      # a model is composed from it
    run = aw.train("modern", "budget=60s")          # a run trains one on text
    aw.compare("modern", "modern:norm.kind=layer")  # a study says which is better, and how sure that is
    print(aw.generate(run, "def "))

Names are imported on first use, so that `import archwright` costs nothing and reading specs needs no torch.
"""

import os
import sys


def _run_by_name() -> bool:
    """Tell whether this process is `python -m archwright`, or one of its modules."""
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:  # "-m" stands there until the module is found
        return False
    name = sys.orig_argv[-len(sys.argv)].partition(".")[0]
    return name == "archwright" or (name.startswith("-") and name.endswith("archwright"))


if _run_by_name():
    # `-m` puts the current folder before all others, and a numpy.py that lies beside a text is no numpy. What
    # PYTHONPATH names stays. This comes before any import that could be found there.
    try:
        if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
            del sys.path[0]
    except OSError:  # the folder is gone
        pass

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

__version__: str

if TYPE_CHECKING:
    from archwright.generation.sampling import sample as sample
    from archwright.generation.writing import generate as generate
    from archwright.inspection.probes import Probes as Probes
    from archwright.lab.compare import Interrupted as Interrupted
    from archwright.lab.compare import compare as compare
    from archwright.model.build import build as build
    from archwright.model.build import build_layer as build_layer
    from archwright.model.decoder import Decoder as Decoder
    from archwright.plugins import register as register
    from archwright.reporting.page import write_report as write_report
    from archwright.runs.load import OpenRun as OpenRun
    from archwright.runs.load import open_run as open_run
    from archwright.spec.errors import UserError as UserError
    from archwright.spec.model_spec import ModelSpec as ModelSpec
    from archwright.spec.read import load as load
    from archwright.spec.read import load_run as load_run
    from archwright.spec.run_spec import RunSpec as RunSpec
    from archwright.spec.study_spec import StudySpec as StudySpec
    from archwright.training.callbacks import StopTraining as StopTraining
    from archwright.training.evaluation import evaluate_text as evaluate_text
    from archwright.training.profiling import profile as profile
    from archwright.training.train import resume as resume
    from archwright.training.train import train as train

_HOMES = {
    "Decoder": "archwright.model.decoder",
    "Interrupted": "archwright.lab.compare",
    "ModelSpec": "archwright.spec.model_spec",
    "OpenRun": "archwright.runs.load",
    "Probes": "archwright.inspection.probes",
    "RunSpec": "archwright.spec.run_spec",
    "StopTraining": "archwright.training.callbacks",
    "StudySpec": "archwright.spec.study_spec",
    "UserError": "archwright.spec.errors",
    "build": "archwright.model.build",
    "build_layer": "archwright.model.build",
    "compare": "archwright.lab.compare",
    "evaluate_text": "archwright.training.evaluation",
    "generate": "archwright.generation.writing",
    "load": "archwright.spec.read",
    "load_run": "archwright.spec.read",
    "open_run": "archwright.runs.load",
    "profile": "archwright.training.profiling",
    "register": "archwright.plugins",
    "resume": "archwright.training.train",
    "sample": "archwright.generation.sampling",
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
