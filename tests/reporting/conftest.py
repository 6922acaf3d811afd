"""Runs that were never trained, with numbers from a formula."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec

Line = dict[str, Any]

TOKENS_PER_STEP = 4096
SECONDS_PER_STEP = 0.147
BYTES_PER_TOKEN = 3.3

SAMPLE = """def read(path):
    with open(path) as file:
        return file.read()
"""

ENVIRONMENT = {
    "archwright": "0.1.0",
    "torch": "2.13.0",
    "python": "3.11.2",
    "machine": "Linux x86_64",
    "cpu": "Testing CPU 9000",
    "cores": 2,
    "memory_bytes": 8_200_000_000,
    "gpu": "",
    "threads": 2,
    "peak_flops": {"fp32": 4.35e11, "bf16": 7.9e11},
    "num_parameters": 1_283_456,
    "flops_per_token": 8_912_896,
    "data": {
        "train": {"num_tokens": 3_100_000, "num_bytes": 10_100_000, "num_documents": 640}
        | {"store": "", "text": ""},
        "held_out": {"num_tokens": 303_098, "num_bytes": 1_000_000, "num_documents": 68}
        | {"store": "", "text": ""},
        "files_skipped": 0,
        "tokenizer": "",
    },
    "decisions": {
        "precision": {"value": "bf16", "reason": "1.82 times the rate of fp32"},
        "threads": {"value": 2, "reason": "one for each core"},
    },
}


class RunMaker:
    """Writes run folders from lines of metrics."""

    environment = ENVIRONMENT

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self,
        lines: list[Line],
        *overrides: str,
        name: str = "demo",
        planned: int | None = None,
        sample: str = SAMPLE,
        environment: dict[str, Any] = ENVIRONMENT,
    ) -> RunFolder:
        """Write a run folder whose spec is resolved, as after training."""
        planned = planned or max((line["step"] for line in lines), default=0) or 1
        decided = f"machine.num_steps={planned}", "machine.precision=bf16"
        spec = RunSpec(name=name).override(*decided, *overrides)
        spec = spec.model_copy(update={"model": spec.model.resolved()})
        run = RunFolder.create(self.folder / name, spec)
        run.write_environment(environment)
        run.write_samples(sample)
        run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run

    def finished(self, steps: int = 400, *overrides: str, **settings: Any) -> RunFolder:
        """Write a run that came to its end."""
        lines = [*self.steps(steps), *self.baselines(steps), self.event("finished", steps)]
        return self.run(lines, *overrides, **settings)

    def steps(
        self, number: int, *, planned: int | None = None, evaluations: int = 8, spike: bool = True
    ) -> Iterator[Line]:
        """Yield what training records: a loss that falls from 8 to 2.2, with noise and one spike."""
        noise = random.Random(0)
        planned = planned or number
        every = max(1, number // evaluations) if evaluations else number + 1
        yield self.event("started", 0, "at step 0")
        for step in range(1, number + 1):
            jump = 1.4 if spike and number > 20 and step == int(0.4 * number) else 0.0
            curve = 2.2 + 5.8 * math.exp(-8 * step / planned) + 0.5 * math.exp(-step / planned)
            loss = curve + noise.gauss(0, 0.06) + jump
            yield {"kind": "train", **self.at(step), **self.measured(loss, step / planned, noise)}
            if jump:
                yield self.event("loss_spike", step, f"loss {loss:.3f} stands out")
            if evaluations and (step % every == 0 or step == number):
                yield {"kind": "eval", **self.at(step), **self.evaluation(curve + 0.05)}

    def measured(self, loss: float, progress: float, noise: random.Random) -> Line:
        """Return what one step measures beside its loss."""
        speed = 27_800 * (1 + noise.gauss(0, 0.02))
        cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * progress))
        return {
            "loss": loss,
            "z_loss": 0.0,
            "grad_norm": math.exp(noise.gauss(-0.6, 0.25)),
            "lr": 5e-3 * min(1, 20 * progress) * cosine,
            "tokens_per_second": speed,
            "utilisation": speed * 8_912_896 / 7.9e11,
            "memory_bytes": 812_000_000,
        }

    def evaluation(self, nats: float, num_bytes: int = 1_000_000) -> Line:
        """Return what an evaluation records."""
        num_tokens = round(num_bytes / BYTES_PER_TOKEN)
        return {
            "nats_per_token": nats,
            "perplexity": math.exp(nats),
            "bits_per_byte": nats * num_tokens / num_bytes / math.log(2),
            "num_tokens": num_tokens,
            "num_bytes": num_bytes,
        }

    def baselines(self, step: int, gzip: float = 2.04, xz: float = 1.71) -> list[Line]:
        """Return what compressors reached."""
        at = {"kind": "baseline", **self.at(step), "num_bytes": 1_000_000}
        return [
            {**at, "name": "gzip -9", "bits_per_byte": gzip},
            {**at, "name": "xz -9e", "bits_per_byte": xz},
        ]

    def event(self, name: str, step: int, text: str = "") -> Line:
        """Return an event."""
        return {"kind": "event", "name": name, **self.at(step), "text": text}

    def at(self, step: int) -> Line:
        """Return where a line stands."""
        seconds = round(step * SECONDS_PER_STEP, 4)
        return {"step": step, "tokens": step * TOKENS_PER_STEP, "seconds": seconds}


@pytest.fixture
def made(tmp_path: Path) -> RunMaker:
    """What writes run folders."""
    return RunMaker(tmp_path)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> RunMaker:
    """What writes run folders that a module's tests share."""
    return RunMaker(tmp_path_factory.mktemp("runs"))
