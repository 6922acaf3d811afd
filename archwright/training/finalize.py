"""The end of a run: weights, a full evaluation, a sample, and its page."""

import contextlib
import shutil
import time
from collections.abc import Callable
from typing import Any

from archwright.data.eval_windows import HeldOut
from archwright.format import printable
from archwright.generation.writing import stream
from archwright.machine.compiling import uncompiled
from archwright.runs import RunFolder
from archwright.runs.ending import early_end
from archwright.runs.load import OpenRun
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material
from archwright.training.evaluation import Reading, compressors, evaluate_halves, reading_of
from archwright.training.loop import Loop
from archwright.training.session import Session

FINAL = "final"
"""Name of the final evaluation of a run that keeps only records."""
SAMPLE_TOKENS = 160
"""Tokens of the sample."""
LARGEST_SAMPLED = 8 * 10**9
"""Bytes of weights from which several ranks write no sample: 160 tokens would take a minute at 20 GB/s."""
TIMED_TOKENS = 4096
"""Held-out tokens for timing the end of a run."""
TIMED_SAMPLE = 10
"""Sampled tokens for timing the end of a run."""
CHECKPOINT_SIZE = 4
"""Size of the last checkpoint (weights and two moments) and the weights file, in sizes of the weights."""
PAGE = 0.5
"""Seconds for writing the page, including imports."""


def finish(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Evaluate on the held-out text, write weights and samples, and mark the run as finished.

    If a process was killed here, its records are not repeated.
    """
    session, first = loop.session, loop.processes.first
    samples = session.windows(material, _final(session.run)).generates_text
    if samples and not can_sample(session):
        loop.progress.say(
            f"no sample: one process would read {LARGEST_SAMPLED // 10**9} GB or more for each token"
        )
        samples = False
    loop.restore_best()
    final_evaluation(loop, folder, material)
    first(lambda: _record_baselines(loop, folder, material))
    metadata = {"archwright": "model", "spec": session.model.spec.hash()}
    session.write_model(folder.model_file, metadata)

    def complete() -> None:
        if samples:
            with session.whole_model(folder.model_file) as model:
                opened = OpenRun(folder, session.run, model, material.tokenizer)
                text = printable(_sample(session, opened, SAMPLE_TOKENS))
            folder.check_kept()
            folder.write_samples(text)
        loop.record("event", name="finished", text=f"{session.standing.step} steps")
        folder.best_file.unlink(missing_ok=True)  # last: needed again if the process is killed
        report(folder)

    first(complete)


def _record_baselines(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Record the results of compressors that are not recorded yet."""
    windows = loop.session.windows(material, _final(loop.session.run))
    known = _known(folder, loop.session.standing.step)
    if isinstance(windows, HeldOut) and windows.defines_bits_per_byte:
        for baseline in compressors(windows, material.tokenizer):
            if ("baseline", baseline.name) not in known:
                loop.record("baseline", **baseline._asdict())
    folder.check_kept()


def time_end(session: Session, folder: RunFolder, material: Material) -> tuple[float, float]:
    """Time a small part of `finish` before the first step.

    Returns:
        Estimated seconds per held-out token, and seconds of everything else.
    """
    run, first = session.run, session.processes.first
    reading = reading_of(run, TIMED_TOKENS, run.evaluate.final_bytes)
    windows = session.windows(material, reading)
    assert isinstance(reading.stride, int)
    readings = 1 + len(run.evaluate.lengths) * reading.stride / run.model.context_length
    evaluation = _seconds(lambda: session.evaluate(material, reading))
    per_token = readings * evaluation / windows.num_tokens
    if isinstance(windows, HeldOut) and windows.defines_bits_per_byte:
        compressing = first(lambda: _seconds(lambda: compressors(windows, material.tokenizer)))
        per_token += compressing / windows.num_tokens
    writing = _seconds(lambda: session.write_model(folder.timed_file, {}))
    others = PAGE + CHECKPOINT_SIZE * writing

    def sampling() -> float:
        with session.whole_model(folder.timed_file) as model:
            opened = OpenRun(folder, session.run, model, material.tokenizer)
            _sample(session, opened, 2)  # the first tokens take longer
            return _seconds(lambda: _sample(session, opened, TIMED_SAMPLE))

    if windows.generates_text and can_sample(session):
        others += SAMPLE_TOKENS / TIMED_SAMPLE * first(sampling)
    first(folder.timed_file.unlink)
    return per_token, others


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def can_sample(session: Session) -> bool:
    """True if the weights are on this device, or one of several ranks can read all of them for each token."""
    size = 4 * session.whole.num_parameters()
    return session.processes.layout.size == 1 or size < LARGEST_SAMPLED


def _sample(session: Session, run: OpenRun, max_new_tokens: int) -> str:
    with uncompiled(run.model), session.precision.autocast():
        seed = session.run.seed
        return "".join(stream(run, top_p=0.95, max_new_tokens=max_new_tokens, seed=seed))


def report(folder: RunFolder) -> None:
    """Write the run's page."""
    # Not imported before the first step, because drawing libraries load slowly.
    from archwright.reporting.page import write_report

    write_report(folder)


def finalize_metrics_only(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Evaluate on the held-out text, mark the run as finished, and keep only its records.

    The curve ends on its own sample. The final evaluation is a separate record with two halves, for tuning and for
    judging.
    """
    session = loop.session
    known = _known(folder, session.standing.step)
    if ("eval", None) not in known:
        loop.record("eval", **loop.evaluate().record())
    windows = session.windows(material, _final(session.run))
    if ("eval", FINAL) not in known:
        found, halves = evaluate_halves(session.model, windows, session.precision)
        loop.record("eval", name=FINAL, **found.record(), **halves.record())
    _evaluate_lengths(loop, material, known)
    with contextlib.suppress(OSError):
        folder.report_file.unlink()  # the page of an earlier stop
    loop.record("event", name="finished", text=f"{session.standing.step} steps")
    shutil.rmtree(folder.checkpoints_folder, ignore_errors=True)


def final_evaluation(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Record the final evaluations, including other lengths, unless they are recorded already."""
    session = loop.session
    pairs = loop.processes.first(lambda: [*_known(folder, session.standing.step)])
    known = {(kind, name) for kind, name in pairs}
    if ("eval", None) not in known:
        found = session.evaluate(material, _final(session.run))
        loop.call("on_evaluation", loop.record("eval", **found.record()))
    _evaluate_lengths(loop, material, known)


def _evaluate_lengths(loop: Loop, material: Material, known: set[tuple[str, str | None]]) -> None:
    """Record evaluations at other lengths; lengths beyond the model's last position have no numbers."""
    session, run = loop.session, loop.session.run
    for length in run.evaluate.lengths:
        if ("length", str(length)) in known:
            continue
        found: dict[str, Any] = {}
        if not (session.model.spec.position.ends and length > run.model.context_length):
            bounds = run.evaluate.final_max_tokens, run.evaluate.final_bytes
            found = session.evaluate(material, Reading(length, length, *bounds)).record()
        loop.record("length", name=str(length), **found)


def _final(run: RunSpec) -> Reading:
    """Return the reading of the final evaluation."""
    return reading_of(run, run.evaluate.final_max_tokens, run.evaluate.final_bytes)


def _known(folder: RunFolder, step: int) -> set[tuple[str, str | None]]:
    """Return kinds and names of the last step's records."""
    records = [record for record in folder.metrics() if record["step"] == step]
    # Records before an early end do not count: the step was not known to be the last.
    if (ended := early_end(records)) is not None:
        records = records[records.index(dict(ended)) :]
    return {(record["kind"], record.get("name")) for record in records}
