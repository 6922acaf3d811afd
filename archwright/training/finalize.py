"""The end of a run: weights, a full evaluation, a sample, and its page."""

import contextlib
import shutil
from typing import Any

from archwright import checkpoint
from archwright.data.eval_windows import HeldOut
from archwright.format import printable
from archwright.generation.writing import stream
from archwright.machine.compiling import uncompiled
from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material
from archwright.training.evaluation import compressors, evaluate, held_out_windows
from archwright.training.loop import Loop

SAMPLE_TOKENS = 160
"""Length of the sample."""


def finish(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Evaluate on the whole held-out text, write samples and weights, mark the run finished.

    What a process that was killed in here has recorded already is not recorded twice.
    """
    session, tokenizer = loop.session, material.tokenizer
    windows = _windows(session.run, material)
    final_evaluation(loop, folder, material)
    known = _known(folder, session.num_steps)
    if windows.objective.defines_bits_per_byte:
        for baseline in compressors(windows, tokenizer):
            if ("baseline", baseline.name) not in known:
                loop.record("baseline", **baseline._asdict())
    if windows.objective.generates_text:
        with uncompiled(session.model), session.precision.autocast():
            written = stream(
                session.model,
                tokenizer,
                top_p=0.95,
                max_tokens=SAMPLE_TOKENS,
                seed=session.run.seed,
            )
            text = printable("".join(written))
        folder.check_kept()
        folder.write_samples(text)
    metadata = {"archwright": "model", "spec": session.model.spec.hash()}
    checkpoint.write_model(folder.model_file, session.model, metadata)
    loop.record("event", name="finished", text=f"{session.num_steps} steps")
    report(folder)


def report(folder: RunFolder) -> None:
    """Write the run's page. What draws it is loaded here, not before the first step."""
    from archwright.reporting.page import write_report

    write_report(folder)


def finalize_metrics_only(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Evaluate on the held-out text and mark the run finished; only numbers stay of it."""
    final_evaluation(loop, folder, material)
    with contextlib.suppress(OSError):
        folder.report_file.unlink()  # the page of an earlier stop
    loop.record("event", name="finished", text=f"{loop.session.num_steps} steps")
    shutil.rmtree(folder.checkpoints_folder, ignore_errors=True)


def final_evaluation(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Record the final evaluation, and those at other lengths, as far as they are not recorded yet."""
    session = loop.session
    known = _known(folder, session.num_steps)
    if ("eval", None) not in known:
        windows = _windows(session.run, material)
        loop.record("eval", **evaluate(session.model, windows, session.precision).record())
    for length in session.run.evaluate.lengths:
        if ("length", str(length)) not in known:
            loop.record("length", name=str(length), **_at_length(loop, material, length))


def _at_length(loop: Loop, material: Material, length: int) -> dict[str, Any]:
    """Return the evaluation on texts of `length` tokens; nothing for a model whose positions end before."""
    session = loop.session
    if session.model.spec.position.ends and length > session.run.model.context_length:
        return {}
    evaluated = session.run.evaluate
    windows = held_out_windows(
        material.held_out,
        material.tokenizer,
        session.run.objective,
        length,
        stride=length,
        max_tokens=evaluated.final_max_tokens,
    )
    return evaluate(session.model, windows, session.precision).record()


def _windows(run: RunSpec, material: Material) -> HeldOut:
    return held_out_windows(
        material.held_out,
        material.tokenizer,
        run.objective,
        run.model.context_length,
        stride=None if run.evaluate.stride == "auto" else run.evaluate.stride,
        max_tokens=run.evaluate.final_max_tokens,
    )


def _known(folder: RunFolder, step: int) -> set[tuple[str, str | None]]:
    """Return kind and name of what is recorded of a step."""
    records = [record for record in folder.metrics() if record["step"] == step]
    return {(record["kind"], record.get("name")) for record in records}
