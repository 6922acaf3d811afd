"""Does a plan say what a training takes? Peak memory of real steps in fresh processes, beside the estimate.

    python -m bench.plan_memory            # all of them, and the table in docs/planning.md
    python -m bench.plan_memory --only 3   # one of them, to the terminal
    python -m bench.plan_memory --add 20 21  # two of them, beside those that were recorded on this processor
    python -m bench.plan_memory --estimates  # all are estimated again, beside what was measured on this processor

A process loads what a training loads, and looks at what it holds; it then makes six steps, by the session of the
trainer, on random tokens. What its largest resident size has grown by stands beside `step_memory`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.plan_results import Benchmark, compared, recorded_here, summary, write

if TYPE_CHECKING:
    from archwright.spec.run_spec import RunSpec

STEPS = 6


def _shape(dim: int, num_layers: int, context_length: int, vocab_size: int) -> str:
    return (
        f"model.dim={dim} model.num_layers={num_layers} model.context_length={context_length} "
        f"model.vocab_size={vocab_size}"
    )


SMALL = f"{_shape(256, 6, 512, 4096)} batch_size=8"
WIDE = f"{_shape(512, 6, 512, 4096)} batch_size=6"
LONG = f"{_shape(256, 6, 2048, 2048)} batch_size=2"
HEAD = f"{_shape(256, 2, 512, 32768)} batch_size=8"
EXPERTS = "model.feedforward.kind=experts model.feedforward.num_experts=8"
FP32 = "machine.precision=fp32"
AGAIN = "machine.activation_checkpointing=full"
SELECTIVE = "machine.activation_checkpointing=selective"
FITTED = (
    f"modern {SMALL}",
    f"modern {SMALL} {FP32}",
    f"modern {SMALL} machine.kernel=sdpa",
    f"modern {SMALL} {FP32} machine.kernel=sdpa {SELECTIVE} batch_size=16",
    f"modern {SMALL} {FP32} machine.kernel=sdpa {AGAIN} batch_size=32",
    f"modern {SMALL} optimizer.kind=muon",
    f"modern {SMALL} {AGAIN} batch_size=32",
    f"modern {SMALL} machine.compile=block",
    f"modern {WIDE}",
    f"modern {WIDE} optimizer.kind=muon",
    f"modern {WIDE} {AGAIN} optimizer.kind=muon batch_size=16",
    f"modern {WIDE} machine.compile=block",
    f"modern {WIDE} {AGAIN} machine.compile=block batch_size=16",
    f"modern {LONG}",
    f"modern {LONG} model.attention.mask.kind=window model.attention.mask.size=256",
    f"modern {LONG} {AGAIN} batch_size=4",
    f"modern {HEAD}",
    f"modern {HEAD} machine.loss=chunked",
    f"modern {HEAD} machine.loss=chunked {AGAIN} optimizer.kind=muon",
    f"textbook {SMALL}",
    f"modern {SMALL} {FP32} batch_size=32",
    f"modern {WIDE} {FP32} batch_size=24",
    f"modern {SMALL} {EXPERTS}",
    f"modern {_shape(1024, 4, 256, 8192)} batch_size=4",
)
"""A model, and what is changed. Shares of lost holes were fitted to these."""
MIXTURE = f"{_shape(256, 6, 512, 4096)} {FP32} {EXPERTS}"
UNSEEN = (
    f"textbook {_shape(384, 4, 256, 8192)} {FP32} batch_size=16",
    f"modern {_shape(256, 4, 512, 16384)} {FP32} batch_size=16 machine.loss=chunked optimizer.kind=muon",
    f"modern {_shape(320, 8, 256, 2048)} {FP32} batch_size=48 {AGAIN} optimizer.kind=muon",
    f"modern {_shape(512, 4, 256, 4096)} {FP32} batch_size=24 {SELECTIVE} optimizer.kind=muon",
    f"modern {_shape(384, 4, 512, 32768)} {FP32} batch_size=8 machine.loss=chunked",
    f"modern {_shape(384, 6, 512, 16384)} {FP32} batch_size=24 machine.loss=chunked {AGAIN}",
    f"modern {MIXTURE} model.feedforward.num_experts=4 batch_size=16 {AGAIN}",
    f"modern {_shape(192, 12, 1024, 4096)} batch_size=4 machine.kernel=sdpa",
    f"modern {_shape(768, 3, 256, 50304)} {FP32} batch_size=2 optimizer.kind=muon",
    f"textbook {_shape(256, 6, 512, 4096)} {FP32} batch_size=24 grad_accum_steps=2 {AGAIN}",
    f"modern {MIXTURE} batch_size=8 {AGAIN}",
    f"modern {MIXTURE} model.feedforward.num_experts=4 batch_size=8 {SELECTIVE}",
    f"modern {MIXTURE} model.feedforward.num_experts=4 batch_size=6",
    f"modern {_shape(384, 4, 256, 4096)} {FP32} {EXPERTS} batch_size=24 {AGAIN}",
)
"""Shares of lost holes were not fitted to these."""
CONFIGURATIONS = (*FITTED, *UNSEEN)
DECIDED = ["machine.device=cpu", "machine.num_steps=10", "machine.threads=1"]
DEFAULT = {"precision": "bf16", "kernel": "blockwise", "loss": "whole", "compile": "none"}


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print the table, record it, and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of configurations, from 0")
    parser.add_argument("--add", type=int, nargs="+", help="numbers, whose rows are recorded")
    parser.add_argument("--estimates", action="store_true", help="measure nothing again")
    parser.add_argument("--child", help="measure this configuration in this process")
    options = parser.parse_args(words)
    if options.child:
        print(json.dumps(measured(options.child)))
        return
    chosen = options.add or options.only or range(len(CONFIGURATIONS))
    kept = recorded_here("memory") if options.add or options.estimates else {}
    found: list[Benchmark] = []
    for number in chosen:
        configuration = CONFIGURATIONS[number]
        grown = kept[configuration].measured * 1e6 if options.estimates else ask(configuration)
        estimate = estimated(configuration)
        found.append(compared(configuration, grown, estimate, 1e6))
        print(*found[-1].row("memory"), sep="  ", flush=True)
    print(summary("memory", found))
    if options.only is None:
        rows = kept | {each.what: each for each in found}
        write("memory", [rows[what] for what in CONFIGURATIONS if what in rows])


def ask(configuration: str) -> float:
    """Return what a process of its own measures."""
    command = [sys.executable, "-m", "bench.plan_memory", "--child", configuration]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def estimated(configuration: str) -> float:
    """Return the bytes that `step_memory` finds for a configuration."""
    from archwright.training.step_memory import step_memory

    return step_memory(_run(configuration)).process


def measured(configuration: str) -> float:
    """Return the bytes by which this process grows over a few steps."""
    from archwright.machine.allocator import tune_allocator

    tune_allocator()
    import numpy as np
    import torch

    import archwright.training.train  # noqa: F401, what a training loads
    from archwright.data.inputs import Batch, Inputs
    from archwright.machine.compiling import compile_parts
    from archwright.model.build import build
    from archwright.training.session import Session

    run = _run(configuration)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    idle = _resident("VmRSS")
    model = build(run.model).use_kernel(run.machine.kernel)
    model.checkpoint_activations(run.machine.activation_checkpointing)
    compile_parts(model, run.machine.compile, whole_loss=run.machine.loss == "whole")

    class Random:
        def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
            shape = (run.batch_size, run.model.context_length)
            tokens = np.random.default_rng(step).integers(int(run.model.vocab_size), size=shape)
            return Batch(Inputs(tokens), tokens)

    session = Session(run, model, Random())
    for _ in range(STEPS):
        session.step()
    return _resident("VmHWM") - idle


def _run(configuration: str) -> "RunSpec":
    from archwright.spec.read import load_run

    name, *words = configuration.split()
    machine = [f"machine.{key}={value}" for key, value in DEFAULT.items()]
    # The last word for a key counts.
    given = dict(word.split("=", 1) for word in (*machine, *DECIDED, *words))
    run = load_run(name).override(*(f"{key}={value}" for key, value in given.items()))
    return run.model_copy(
        update={"model": run.model.resolved(), "optimizer": run.optimizer.with_lrs_resolved()}
    )


def _resident(key: str) -> float:
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split(f"{key}:")[1].split()[0]) * 1024.0


if __name__ == "__main__":
    main()
