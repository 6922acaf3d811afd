"""Runs that were never trained, with numbers from a formula, and a browser to see their pages."""

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec

ENVIRONMENT = {
    "machine": "Linux x86_64",
    "cpu": "Testing CPU 9000",
    "cores": 2,
    "threads": 2,
    "torch": "2.13.0",
    "python": "3.11.2",
    "archwright": "0.1.0",
    "peak_flops": {"fp32": 4.35e11, "bf16": 7.9e11},
    "num_parameters": 1_283_456,
    "flops_per_token": 8_912_896,
    "gpu": "",
    "memory_bytes": 8_200_000_000,
    "data": {
        "train": {"num_tokens": 3_100_000, "num_bytes": 10_100_000, "num_documents": 640},
        "held_out": {"num_tokens": 303_098, "num_bytes": 1_000_000, "num_documents": 68},
    },
    "decisions": {
        "precision": {
            "value": "bf16",
            "reason": "bf16 matrix products run at 1.82 times the rate of fp32",
        },
        "threads": {"value": 2, "reason": "one for each core"},
    },
}

SAMPLE = """def read(path):
    with open(path) as file:
        return file.read()
"""

TOKENS_PER_STEP = 4096


def metric_lines(
    steps: int, evaluations: int = 8, planned: int | None = None, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run whose loss falls from 8 towards 2.2, with noise and one spike."""
    noise = random.Random(seed)
    planned = planned or steps
    yield event_line("started", 0, "at step 0")
    every = max(1, steps // evaluations) if evaluations else steps + 1
    for step in range(1, steps + 1):
        at = {"step": step, "tokens": step * TOKENS_PER_STEP, "seconds": round(step * 0.147, 3)}
        spike = 1.4 if step == int(0.4 * steps) and steps > 20 else 0.0
        curve = 2.2 + 5.8 * math.exp(-8 * step / planned) + 0.5 * math.exp(-step / planned)
        loss = curve + noise.gauss(0, 0.06) + spike
        warm_up = min(1, step / max(1, planned // 20))
        cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * step / planned))
        speed = 27_800 * (1 + noise.gauss(0, 0.02)) * (0.4 if step < 3 else 1)
        yield {
            "kind": "train",
            **at,
            "loss": loss,
            "z_loss": 0.0,
            "grad_norm": math.exp(noise.gauss(-0.6, 0.25)) + 4 * spike,
            "lr": 5e-3 * warm_up * cosine,
            "tokens_per_second": speed,
            "utilisation": speed * 8_912_896 / 7.9e11,
            "memory_bytes": 812_000_000,
        }
        if spike:
            text = f"loss {loss:.3f} stands out"
            yield {"kind": "event", "name": "loss_spike", **at, "text": text}
        if evaluations and (step % every == 0 or step == steps):
            yield {"kind": "eval", **at, **evaluation(curve + 0.05)}


def evaluation(nats: float) -> dict[str, Any]:
    """Return what an evaluation records; 3.3 bytes are a token."""
    num_tokens, num_bytes = 303_030, 1_000_000
    return {
        "nats_per_token": nats,
        "perplexity": math.exp(nats),
        "bits_per_byte": nats * num_tokens / num_bytes / math.log(2),
        "num_tokens": num_tokens,
        "num_bytes": num_bytes,
    }


def baseline_lines() -> list[dict[str, Any]]:
    """Return what gzip and xz reached."""
    at = {"kind": "baseline", "step": 0, "tokens": 0, "seconds": 0.0, "num_bytes": 1_000_000}
    return [
        {**at, "name": "gzip -9", "bits_per_byte": 2.04},
        {**at, "name": "xz -9e", "bits_per_byte": 1.71},
    ]


def event_line(name: str, step: int, text: str = "") -> dict[str, Any]:
    """Return an event at a step."""
    return {
        "kind": "event",
        "name": name,
        "step": step,
        "tokens": step * TOKENS_PER_STEP,
        "seconds": step * 0.147,
        "text": text,
    }


Make = Callable[..., RunFolder]


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """Return a function that writes a run folder from metric lines and overrides of the spec."""

    def make(
        lines: list[dict[str, Any]],
        *overrides: str,
        sample: str = SAMPLE,
        environment: dict[str, Any] = ENVIRONMENT,
        name: str = "demo",
    ) -> RunFolder:
        steps = max((line["step"] for line in lines), default=0)
        decided = f"machine.num_steps={max(1, steps)}", "machine.precision=bf16"
        spec = RunSpec(name=name).override(*decided, *overrides)
        spec = spec.model_copy(update={"model": spec.model.resolved()})
        run = RunFolder.create(tmp_path / name, spec)
        run.write_environment(environment)
        run.write_samples(sample)
        run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run

    return make


@pytest.fixture
def finished_run(make_run: Make) -> RunFolder:
    """A run of 400 steps that came to its end."""
    lines = [*baseline_lines(), *metric_lines(400), event_line("finished", 400)]
    return make_run(lines, "model.dim=128", "model.num_layers=4", "model.feedforward.kind=gelu")


CHROMIUM = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium, driven by playwright; where there is none, its tests are skipped."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, CHROMIUM), None)
    if not found:
        pytest.skip("no Chromium on this machine: pages were not looked at")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        yield browser
        browser.close()
