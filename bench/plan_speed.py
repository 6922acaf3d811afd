"""Does a plan say how fast this machine trains, reads and writes? Shapes without a rate, beside estimates.

    python -m bench.plan_speed

Steps, texts and tokens are timed as rates are: the fastest of some, on one thread in processor time. Steps are of the
precision in which this machine trains faster.
"""

from collections.abc import Callable
from typing import Any

from bench.plan_results import Benchmark, compared, summary, write

SHAPES = (
    "step dim=192 num_layers=3 context_length=384 vocab_size=3000 batch_size=4",
    "step dim=320 num_layers=6 context_length=320 vocab_size=5000 batch_size=4",
    "step dim=448 num_layers=4 context_length=192 vocab_size=2500 batch_size=8",
    "step dim=192 num_layers=4 context_length=1536 vocab_size=1000 batch_size=1",
    "step dim=576 num_layers=3 context_length=160 vocab_size=7000 batch_size=4 feedforward.kind=gelu",
    "step dim=320 num_layers=3 context_length=640 vocab_size=3000 batch_size=2 norm.kind=layer",
    "prefill dim=384 num_layers=6 context_length=768 vocab_size=3000",
    "prefill dim=640 num_layers=4 context_length=352 vocab_size=3000",
    "prefill dim=192 num_layers=8 context_length=1280 vocab_size=3000",
    "decode dim=384 num_layers=6 context_length=768 vocab_size=3000",
    "decode dim=768 num_layers=4 context_length=320 vocab_size=6000",
    "decode dim=1152 num_layers=3 context_length=160 vocab_size=3000",
)
"""What is timed, and of which model."""


def main() -> None:
    """Measure, print the table, record it, and write it into the page."""
    import torch

    from archwright.machine.allocator import tune_allocator

    tune_allocator()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    found: list[Benchmark] = []
    for shape in SHAPES:
        estimate, real = _both(shape)
        found.append(compared(shape, real, estimate, 1e-3))
        print(*found[-1].row("speed"), sep="  ", flush=True)
    print(summary("speed", found))
    write("speed", found)


def _both(shape: str) -> tuple[float, float]:
    """Return the estimated and the real seconds."""
    import torch

    from archwright.machine.decide import decide
    from archwright.machine.rates import fastest
    from archwright.model.build import build
    from archwright.spec.read import load_run
    from archwright.spec.run_spec import MachineSpec
    from archwright.training.step_time import Steps, decode_time, prefill_time, step_time

    what, *words = shape.split()
    keys = [word if word.startswith("batch_size") else f"model.{word}" for word in words]
    precision = decide(MachineSpec(device="cpu", threads=1)).machine.precision
    machine = (
        "device=cpu",
        f"precision={precision}",
        "kernel=blockwise",
        "loss=whole",
        "compile=none",
    )
    run = load_run("modern").override(
        "model.attention.num_heads=4", "model.attention.num_kv_heads=2", *keys
    )
    run = run.override(*(f"machine.{word}" for word in machine))
    run = run.model_copy(update={"optimizer": run.optimizer.with_lrs_resolved()})
    if what == "step":
        return step_time(run).seconds, fastest(Steps(run).step)
    length = run.model.context_length
    model = build(run.model).eval()
    text = torch.zeros(1, length, dtype=torch.long)

    def read(cache: Any, tokens: torch.Tensor) -> None:
        model.head(model.hidden(tokens, cache=cache)[:, -1])

    before = length - 64
    estimate = prefill_time(run, length) if what == "prefill" else decode_time(run, before)
    with torch.inference_mode():
        if what == "prefill":
            call: Callable[[], Any] = lambda: read(model.new_cache(), text)  # noqa: E731
            return estimate.seconds, fastest(call)
        cache = model.new_cache()
        read(cache, text[:, :before])
        return estimate.seconds, fastest(lambda: read(cache, text[:, :1]))


if __name__ == "__main__":
    main()
