"""What a run leaves behind: weights, a full evaluation, a sample, and its page."""

from archwright import checkpoint
from archwright.generation.writing import stream
from archwright.reporting.page import write_report
from archwright.runs import RunFolder
from archwright.training.evaluation import compressors, evaluate, held_out_windows
from archwright.training.loop import Loop
from archwright.training.material import Material

SAMPLE_TOKENS = 160
"""Length of the sample."""


def finish(loop: Loop, folder: RunFolder, material: Material) -> None:
    """Evaluate on the whole held-out text, write samples and weights, mark the run finished.

    What a process that was killed in here has recorded already is not recorded twice.
    """
    session, tokenizer = loop.session, material.tokenizer
    run = session.run
    windows = held_out_windows(
        material.held_out,
        tokenizer,
        run.model.context_length,
        stride=None if run.evaluate.stride == "auto" else run.evaluate.stride,
        max_tokens=run.evaluate.final_max_tokens,
    )
    known = {
        (record["kind"], record.get("name"))
        for record in folder.metrics()
        if record["step"] == session.num_steps
    }
    if ("eval", None) not in known:
        loop.record("eval", **evaluate(session.model, windows, session.precision).record())
    for baseline in compressors(windows, tokenizer):
        if ("baseline", baseline.name) not in known:
            loop.record("baseline", **baseline._asdict())
    with session.precision.autocast():
        written = stream(
            session.model, tokenizer, top_p=0.95, max_tokens=SAMPLE_TOKENS, seed=run.seed
        )
        folder.write_samples("".join(written))
    metadata = {"archwright": "model", "spec": session.model.spec.hash()}
    checkpoint.write_model(folder.model_file, session.model, metadata)
    loop.record("event", name="finished", text=f"{session.num_steps} steps")
    write_report(folder)
