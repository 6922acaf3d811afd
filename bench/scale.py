"""Several processes beside one: the same losses, and how many tokens a second.

    python -m bench.scale               losses of 15 steps in one process and in groups of 2 and 4; renews the table of
                                        bench/results/2026-11-27-scale.md
    python -m bench.scale --pipeline    the same of pipelines, beside one process with the same microbatches
    python -m bench.scale --float64     the largest of both in float64, where what rounding turns is a billionth as wide
    python -m bench.scale --overhead    tokens/s of two processes of one thread beside one of two threads

Parity: tiny models on the text of LICENSE, fp32, AdamW, the gradient's norm clipped. A number is the largest difference
of a step's loss from that of one process. Beside it stand controls: what one process differs from itself where it only
adds up its gradients in another order, with grad_accum_steps=2, or products that write into the stream in two halves,
as a tensor group does. All groups are started by torchrun, on the CPU.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from archwright.scale.processes import Processes
    from archwright.spec.run_spec import RunSpec
    from archwright.training.session import Session

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "bench" / "results" / "2026-11-27-scale.md"
BEGIN, END = "<!-- made by python -m bench.scale -->", "<!-- to here -->"
BEGIN_PIPELINES = "<!-- made by python -m bench.scale --pipeline -->"
BEGIN_FLOAT64 = "<!-- made by python -m bench.scale --float64 -->"
STEPS = 15
MODELS = {
    "textbook (ReLU)": ("textbook",),
    "textbook, GELU": ("textbook", "model.feedforward.kind=gelu"),
    "modern": ("modern",),
    "modern, Muon, two microbatches, chunked loss": (
        *("modern", "optimizer.kind=muon", "grad_accum_steps=2", "machine.loss=chunked"),
    ),
    "gemma-2-2b": ("gemma-2-2b",),
    "mixtral-8x7b (experts)": ("mixtral-8x7b", "model.feedforward.balance_loss=0.01"),
    "deepseek-v2-lite (MLA, experts)": ("deepseek-v2-lite",),
    "deepseek-v3 (moving router bias)": (
        *(
            "deepseek-v3",
            "model.feedforward.num_experts=32",
            "model.feedforward.selection_bias_update_rate=0.1",
        ),
    ),
    "t5-small (two stacks, ReLU)": ("t5-small",),
    "t5-small, GELU": ("t5-small", "model.feedforward.kind=gelu"),
    "bert-base (encoder)": ("bert-base",),
    "albert-base (shared layers)": ("albert-base",),
    "reformer (hashes, reversible)": ("reformer",),
}
"""What each row is made of: the name of a model, and what is changed."""
FIXED = (
    "batch_size=8",
    "seed=1",
    "budget=15steps",
    "data.tokenizer.kind=bytes",
    "machine.device=cpu",
    "machine.threads=1",
    "machine.precision=fp32",
    "machine.float32_matmul_precision=highest",
    "machine.kernel=sdpa",
    "machine.compile=none",
    "machine.fused=none",
)
"""Nothing is measured, and nothing differs but the number of processes."""
GRIDS = (
    *((2, 1), (1, 2), (1, 4), (2, 2)),
    *((1, 1, 2, False), (1, 1, 2, True), (1, 1, 4, True), (1, 2, 2, True)),
    *((1, 1, 1, True, 2), (1, 2, 1, True, 2)),
    *((1, 2, 1, True, 1, 2), (1, 4, 1, True, 1, 2), (2, 2, 1, True, 1, 2)),
)
"""scale.replicate, scale.shard, and where they are no defaults scale.tensor, scale.sequence, scale.context,
scale.expert, scale.pipeline and scale.pipeline_schedule."""
PIPELINES = (
    *((1, 1, 1, True, 1, 1, 2), (1, 1, 1, True, 1, 1, 2, "interleaved_1f1b")),
    *((1, 1, 1, True, 1, 1, 4), (1, 2, 1, True, 1, 1, 2), (1, 1, 2, True, 1, 1, 2)),
    *((1, 1, 1, True, 2, 1, 2), (1, 2, 1, True, 1, 2, 2)),
)
"""The same of pipelines, which want a batch in microbatches."""
IN_PARTS = "grad_accum_steps=4"


class Case(NamedTuple):
    """A row of the table."""

    name: str
    words: tuple[str, ...]
    text: str
    float64: bool = False
    """Weights, moments and products in float64, not float32."""

    @classmethod
    def read(cls, values: Sequence[Any]) -> "Case":
        """Return a row that went through JSON."""
        name, words, *rest = values
        return cls(name, tuple(words), *rest)


def run_of(case: Case, *more: str) -> "RunSpec":
    """Return the run of a row: tiny, without dropout."""
    from archwright.scale.checks import dropouts
    from archwright.spec.read import load_run
    from archwright.spec.scale_down import tiny_run

    name, *words = case.words
    run = tiny_run(load_run(name)).override(*FIXED, f"data.text={case.text}").override(*words)
    return run.override(*(f"{path}=0" for path, _ in dropouts(run))).override(*more)


@contextmanager
def started(case: Case, *more: str, processes: "Processes | None" = None) -> "Iterator[Session]":
    """Yield the training of a row before its first step, by one process or, where this is one of several, by all."""
    from archwright.machine.decide import decide
    from archwright.runs import RunFolder
    from archwright.scale.processes import ALONE
    from archwright.training.data import prepare_data
    from archwright.training.progress import Silent
    from archwright.training.resolve import make_batches, make_model, resolve
    from archwright.training.session import Session

    with tempfile.TemporaryDirectory() as folder:
        run = run_of(case, *more)
        material = prepare_data(run, RunFolder(folder))
        run = resolve(run, material, Silent())[0].run
        decide(run.machine)
        model = make_model(run, material, run.machine).use_kernel(run.machine.kernel)
        group = processes or ALONE
        if case.float64:
            model.double()
        group.cut(model)
        session = Session(run, model, make_batches(run, material), group)
        for optimizer in session.optimizers.values():
            for parameters in optimizer.param_groups:
                if case.float64 and "dtype" in parameters:
                    parameters["dtype"] = "float64"  # of Muon's products
        yield session


def trained(
    case: Case, steps: int, *more: str, processes: "Processes | None" = None
) -> list[list[float]]:
    """Return loss and norm of the gradient of each of the first steps of a row."""
    with started(case, *more, processes=processes) as session:
        found = [session.step() for _ in range(steps)]
        return [[result.loss, result.grad_norm] for result in found]


def in_group(cases: Sequence[Case], steps: int, grids: Sequence[Sequence[Any]], out: Path) -> None:
    """As one of the processes that torchrun started: train all rows on all grids; the first one writes what it saw."""
    from archwright.scale.checks import check_layout
    from archwright.scale.group import Group
    from archwright.scale.launch import launched
    from archwright.scale.layout import Layout
    from archwright.spec.errors import UserError

    launch = launched()
    assert launch is not None, "torchrun starts this"
    group = Group(launch)
    if launch.rank == 0:
        group.begin({"do": "train", "device": "cpu", "layout": [1, launch.size]})
    else:
        group.wait_to_begin()
    found = {}
    for case in cases:
        for grid in grids:
            replicate, shard, *rest = grid
            group.layout = Layout(replicate, shard, launch.local_size, *rest)  # type: ignore[arg-type]
            more = (IN_PARTS,) if group.layout.pipeline > 1 else ()
            try:
                check_layout(run_of(case, *more), group.layout)
            except UserError:
                continue
            found[f"{case.name}/{title(grid)}"] = trained(case, steps, *more, processes=group)
    if launch.rank == 0:
        out.write_text(json.dumps(found))
    group.leave()


def of_processes(
    number: int, cases: Sequence[Case], steps: int, grids: Sequence[Sequence[Any]]
) -> dict[str, list[list[float]]]:
    """Return what `trained` gives of rows on grids of so many processes, by "row/grid"."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "losses.json"
        asked = json.dumps({"cases": cases, "steps": steps, "grids": grids, "out": str(out)})
        subprocess.run(
            [*torchrun(number), "-m", "bench.scale", "--in-group", asked],
            cwd=ROOT,
            check=True,
            env=environment(),
        )
        found: dict[str, list[list[float]]] = json.loads(out.read_text())
        return found


def torchrun(number: int) -> list[str]:
    """Return the beginning of a command that starts so many processes, at a port that is free."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={number}",
    ]


def environment(threads: int = 1) -> dict[str, str]:
    """Return the environment of processes that find this package."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}


def parity(cases: Sequence[Case], steps: int) -> str:
    """Return the table of the largest differences from one process."""
    one = {case.name: trained(case, steps) for case in cases}
    accumulated = {
        case.name: trained(
            case, steps, f"grad_accum_steps={4 if 'microbatches' in case.name else 2}"
        )
        for case in cases
    }
    with in_halves():
        halves = {case.name: trained(case, steps) for case in cases}
    many = of_all(cases, steps, GRIDS)
    heads = [title(grid) for grid in GRIDS]
    lines = [
        f"| model | loss, step 1 and {steps} | {' | '.join(heads)} | control: one process, its gradients in "
        "microbatches | control: one process, rowwise products in halves |",
        "|---|---|" + "---|" * (len(heads) + 2),
    ]
    for case in cases:
        alone = one[case.name]
        rows = [many.get(f"{case.name}/{grid}") for grid in heads]
        rows += [accumulated[case.name], halves[case.name]]
        cells = " | ".join(_worst(row, alone) for row in rows)
        lines.append(f"| {case.name} | {alone[0][0]:.3f}, {alone[-1][0]:.3f} | {cells} |")
    return "\n".join(lines)


def pipelines(cases: Sequence[Case], steps: int) -> str:
    """Return the table of the largest differences of pipelines from one process; without models that are none."""
    one = {case.name: trained(case, steps, IN_PARTS) for case in cases}
    many, heads = of_all(cases, steps, PIPELINES), [title(grid) for grid in PIPELINES]
    lines = [
        f"| model | loss, step 1 and {steps} | {' | '.join(heads)} |",
        "|---|---|" + "---|" * len(heads),
    ]
    for case in cases:
        alone = one[case.name]
        rows = [many.get(f"{case.name}/{grid}") for grid in heads]
        if any(rows):
            cells = " | ".join(_worst(row, alone) for row in rows)
            lines.append(f"| {case.name} | {alone[0][0]:.3f}, {alone[-1][0]:.3f} | {cells} |")
    return "\n".join(lines)


def in_float64(cases: Sequence[Case], steps: int) -> str:
    """Return the table of the largest difference from one process over all grids, and over all pipelines."""
    lines = [
        "| model | groups that train it | largest difference | pipelines that train it | largest difference |",
        "|---|---|---|---|---|",
    ]
    alone = {case.name: trained(case, steps) for case in cases}
    in_parts = {case.name: trained(case, steps, IN_PARTS) for case in cases}
    groups, piped = of_all(cases, steps, GRIDS), of_all(cases, steps, PIPELINES)
    for case in cases:
        cells = []
        for many, one in ((groups, alone), (piped, in_parts)):
            rows = [row for name, row in many.items() if name.startswith(f"{case.name}/")]
            steps_of_all = [step for row in rows for step in row]
            worst = _worst(steps_of_all, one[case.name] * len(rows)) if rows else ""
            cells += [str(len(rows)), worst]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def of_all(
    cases: Sequence[Case], steps: int, grids: Sequence[Sequence[Any]]
) -> dict[str, list[list[float]]]:
    """Return what `of_processes` gives of grids of 2, 4 and 8 processes."""
    many: dict[str, list[list[float]]] = {}
    for number in (2, 4, 8):
        some = [g for g in grids if math.prod((*g[:3], *g[4:5], *g[6:7])) == number]
        if some:
            many |= of_processes(number, cases, steps, some)
    return many


@contextmanager
def in_halves() -> "Iterator[None]":
    """Inside, maps that write into the stream add up two products, of half of what they read each."""
    from torch import Tensor
    from torch.nn.functional import linear

    from archwright.parts.linear import Linear

    whole = Linear.forward

    def forward(m: Linear, x: Tensor) -> Tensor:
        if m.cut != "rowwise":
            return whole(m, x)
        half = m.d_in // 2
        y = linear(x[..., :half], m.weight[:, :half]) + linear(x[..., half:], m.weight[:, half:])
        return y if m.bias is None else y + m.bias

    Linear.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        Linear.forward = whole  # type: ignore[method-assign]


def title(grid: Sequence[Any]) -> str:
    """Return a grid in words."""
    replicate, shard, tensor, sequence, context, expert, pipeline, schedule = [
        *grid,
        *(1, 1, 1, False, 1, 1, 1, "1f1b")[len(grid) :],
    ]
    named = {"pipeline": pipeline, "replicate": replicate, "shard": shard, "context": context}
    named |= {"tensor": tensor, "expert": expert}
    words = [f"{name} {n}" for name, n in named.items() if n > 1]
    words += ["sequence"] * (sequence and tensor > 1) + ["interleaved"] * (schedule != "1f1b")
    return ", ".join(words)


def _worst(row: list[list[float]] | None, alone: list[list[float]]) -> str:
    """Return the largest difference of a loss; what a grid cannot train is refused."""
    if row is None:
        return "refused"
    worst = max(abs(a[0] - b[0]) for a, b in zip(row, alone, strict=True))
    return f"{worst:.1e}" if worst else "0"


EXPERTS = (
    *("model.feedforward.kind=experts", "model.feedforward.num_experts=8"),
    *("model.feedforward.top_k=2", "model.feedforward.expert.hidden_dim=256"),
)
ONE = "one process of two threads"
WAYS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "dense": (
        (),
        {
            "two replicas of one thread": "scale.shard=1",
            "two shards": "scale.shard=2",
            "a tensor group of two": "scale.tensor=2",
            "a context group of two": "scale.context=2",
        },
    ),
    "dense, 8 microbatches": (
        ("grad_accum_steps=8",),
        {
            "two shards": "scale.shard=2",
            "a pipeline of two": "scale.pipeline=2",
            "a pipeline of two, interleaved": "scale.pipeline=2 scale.pipeline_schedule=interleaved_1f1b",
        },
    ),
    "8 experts, 2 a token": (
        EXPERTS,
        {"two shards": "scale.shard=2", "an expert group of two": "scale.shard=2 scale.expert=2"},
    ),
}
"""Of each model that is timed, what it is made of, and how two processes of one thread share it."""


def overhead(repeats: int, steps: int) -> str:
    """Return a table of tokens/s: one process of two threads, and two of one, in turns."""
    words = (
        *("train", "modern", f"data.text={ROOT / 'docs' / 'decisions.md'}"),
        "data.tokenizer.kind=bytes",
        *("model.dim=256", "model.num_layers=6", "model.context_length=256", "batch_size=16"),
        *(f"budget={steps}steps", "evaluate.every=1000000", "evaluate.final_max_tokens=1000"),
        *("machine.threads=2", "machine.precision=fp32", "machine.kernel=sdpa", "--quiet"),
    )
    lines = ["| model | | tokens/s | beside one process |", "|---|---|---|---|"]
    for model, (more, shared) in WAYS.items():
        ways = {ONE: ([sys.executable], "")}
        ways |= {name: (torchrun(2), how) for name, how in shared.items()}
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, (start, how) in ways.items():
                with tempfile.TemporaryDirectory() as folder:
                    out = Path(folder) / "run"
                    command = [*start, "-m", "archwright", *words, *more, *how.split()]
                    command += ["--out", str(out)]
                    subprocess.run(command, check=True, cwd=ROOT, env=environment())
                    records = [json.loads(line) for line in (out / "metrics.jsonl").open()]
                trained = [r["tokens_per_second"] for r in records if r["kind"] == "train"]
                speeds[name].append(statistics.median(trained[5:]))
        first = statistics.median(speeds[ONE])
        for name, found in speeds.items():
            middle = statistics.median(found)
            lines.append(f"| {model} | {name} | {middle:,.0f} | {middle / first:.2f} |")
    return "\n".join(lines)


def cases_of(names: Sequence[str], text: str, *, float64: bool = False) -> list[Case]:
    """Return rows by name."""
    return [Case(name, MODELS[name], text, float64) for name in names]


def main(words: Sequence[str] | None = None) -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pipeline", action="store_true", help="losses of pipelines")
    parser.add_argument("--float64", action="store_true", help="losses of both in float64")
    parser.add_argument("--overhead", action="store_true", help="measure speed in place of losses")
    parser.add_argument("--repeats", type=int, default=5, help="turns of --overhead")
    parser.add_argument("--steps", type=int, default=60, help="steps of each turn of --overhead")
    parser.add_argument("--in-group", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.in_group:
        asked = json.loads(options.in_group)
        cases = [Case.read(values) for values in asked["cases"]]
        in_group(cases, asked["steps"], asked["grids"], Path(asked["out"]))
        sys.stdout.flush()
        os._exit(0)  # as archwright's command ends where several processes train
    if options.overhead:
        print(overhead(options.repeats, options.steps))
        return
    started = time.perf_counter()
    cases = cases_of([*MODELS], str(ROOT / "LICENSE"), float64=options.float64)
    begin, table_of = BEGIN, parity
    if options.pipeline:
        begin, table_of = BEGIN_PIPELINES, pipelines
    elif options.float64:
        begin, table_of = BEGIN_FLOAT64, in_float64
    table = table_of(cases, STEPS)
    print(table)
    print(f"\n{time.perf_counter() - started:.0f} s", file=sys.stderr)
    before, _, rest = PAGE.read_text().partition(begin)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{begin}\n{table}\n{END}{after}")


if __name__ == "__main__":
    main()
