"""Opening a run on a device and in a dtype."""

from pathlib import Path

import pytest
import torch

import archwright as aw
from archwright.runs.load import OpenRun
from archwright.spec.errors import UserError
from tests.tiny import tiny_run, write_text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    folder = tmp_path_factory.mktemp("load")
    few = ("budget=2steps", "evaluate.max_tokens=50", "evaluate.final_max_tokens=50")
    return aw.train(tiny_run(write_text(folder / "text.txt"), *few), out=folder / "run", quiet=True)


def test_the_dtype_is_that_of_the_weights(run: OpenRun) -> None:
    half = aw.open_run(run.folder.path, device="auto", dtype="bf16")
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    buffers = {n: b.dtype for n, b in run.model.named_buffers()}
    assert {n: b.dtype for n, b in half.model.named_buffers()} == buffers


def test_an_open_run_is_copied_or_itself(run: OpenRun) -> None:
    assert aw.open_run(run) is aw.open_run(run, device="cpu", dtype="float32") is run
    half = aw.open_run(run, dtype="float16")
    assert next(half.model.parameters()).dtype == torch.float16
    assert next(run.model.parameters()).dtype == torch.float32
    assert aw.open_run(half) is half


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"device": "cud"},
            'device: found "cud"; expected auto, cpu, cuda or cuda:N. Did you mean "cuda"?',
        ),
        (
            {"device": "cuda:99"},
            'device: found "cuda:99"; expected "cpu" or "auto", as this CUDA device is not available here',
        ),
        (
            {"dtype": "float3"},
            'dtype: found "float3"; expected float32, bfloat16 or float16. Did you mean "float32"?',
        ),
    ],
)
def test_mistakes(run: OpenRun, settings: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        aw.open_run(Path(run.folder.path), **settings)  # type: ignore[arg-type]
    assert error.value.lines == (message,)
