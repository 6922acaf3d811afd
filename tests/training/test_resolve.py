"""Settling: every "auto" becomes a value once; a run that was settled decides nothing again."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.machine import decide as machine_room
from archwright.machine.decide import Decisions, decide
from archwright.machine.peaks import Peak
from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.planning.cost import flops_per_token
from archwright.runs import RunFolder
from archwright.scale.layout import Layout
from archwright.scale.processes import Processes
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
from archwright.spec.overrides import flatten
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from archwright.training import resolve as resolve_room
from archwright.training.data import Material, prepare_data, reload_data
from archwright.training.progress import Silent
from archwright.training.resolve import resolve
from tests.tiny import tiny_run, write_text

AUTO = (
    "machine.threads=auto",
    "machine.precision=auto",
    "machine.float32_matmul_precision=auto",
    "machine.kernel=auto",
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing; threads stay as they are."""
    monkeypatch.setattr(machine_room, "peak_of", lambda *_: Peak(1e11, True))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)


def test_every_auto_becomes_a_value(run: RunSpec, material: Material) -> None:
    run = run.override(*AUTO, "optimizer.kind=muon", "evaluate.every=0", "budget=40steps")
    session, decisions = resolve(run, material, Silent())
    values = flatten(session.run.model_dump(by_alias=True))
    # Follows the grid of each start.
    assert [path for path, value in values.items() if value == "auto"] == ["scale.reshard"]
    assert session.run.machine.num_steps == 40
    assert session.run.schedule.warmup == 2
    assert session.run.evaluate.every == 4
    assert session.run.evaluate.stride == 16
    assert session.run.model.vocab_size == 320  # 256 bytes, end-of-text, rounded up to 64
    assert set(decisions.reasons) == {
        *(
            "device",
            "threads",
            "float32_matmul_precision",
            "precision",
            "kernel",
            "scan",
            "loss",
            "compile",
            "fused",
            "num_steps",
        )
    }


def test_given_values_are_kept_and_have_no_reason(run: RunSpec, material: Material) -> None:
    run = run.override("machine.device=cpu", "machine.num_steps=17", "budget=40steps")
    session, decisions = resolve(run, material, Silent())
    assert session.run.machine == MachineSpec(
        device="cpu",
        precision="fp32",
        float32_matmul_precision="highest",
        kernel="sdpa",
        scan="chunked",
        loss="whole",
        compile="none",
        fused="none",
        threads=1,
        num_steps=17,
    )
    assert set(decisions.reasons) == {"scan", "loss", "compile", "fused"}


def test_a_scan_that_needs_a_gpu_is_refused(run: RunSpec, material: Material) -> None:
    with pytest.raises(UserError, match=r'machine\.scan: found "fla", which needs a GPU'):
        resolve(run.override("machine.scan=fla"), material, Silent())


@pytest.mark.parametrize(
    ("changes", "tried"),
    [
        (["budget=20m", "evaluate.max_tokens=64"], True),
        (["budget=9m", "evaluate.max_tokens=64"], False),
        (["budget=20m", "machine.compile=none"], False),
        (["budget=40steps"], False),
        (["budget=10000000000steps"], True),
    ],
)
def test_compiling_is_tried_in_long_runs(
    changes: list[str],
    tried: bool,
    run: RunSpec,
    material: Material,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolve_room, "compile_if_faster", lambda session: ("none", "it was tried"))
    session, decisions = resolve(run.override(*changes), material, Silent())
    assert session.run.machine.compile == "none"
    assert (decisions.reasons["compile"] == "it was tried") == tried


def test_layers_are_compiled_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the length of the run."""
    monkeypatch.setattr(resolve_room, "compile_for_cuda", lambda session: ("block", "on a GPU"))
    decisions = Decisions(MachineSpec(device="cuda"))
    resolve_room._decide_compile(decisions, SimpleNamespace())  # type: ignore[arg-type]
    assert decisions.machine.compile == "block"


def test_a_narrow_stream_needs_bf16_and_layers_that_keep_it(
    run: RunSpec, material: Material
) -> None:
    narrow = run.override("machine.stream=autocast", "machine.device=cpu", "budget=2steps")
    with pytest.raises(UserError, match=r'machine\.stream: found "autocast" with precision fp32'):
        resolve(narrow.override("machine.precision=fp32"), material, Silent())
    narrow = narrow.override("machine.precision=bf16")
    session, _ = resolve(narrow, material, Silent())
    dtypes = []
    for layer in session.model.all_layers:
        layer.register_forward_pre_hook(lambda _, args: dtypes.append(args[0].dtype))
    assert session.step().finite
    assert {*dtypes} == {torch.bfloat16}
    with pytest.raises(UserError, match="as reversible layers need exact sums"):
        resolve(narrow.override("model.residual.kind=reversible"), material, Silent())


@pytest.mark.parametrize(
    ("missing", "changes", "reason"),
    [
        ("a GPU", ["budget=10000000000steps"], "liger's kernels need a GPU"),
        ("", ["budget=40steps"], "it is tried in runs of over 10 minutes"),
        ("", ["budget=10000000000steps"], "it was tried"),
        ("", ["budget=10000000000steps", "machine.fused=none"], None),
    ],
)
def test_fused_kernels_are_tried_in_long_runs_on_a_gpu(
    missing: str,
    changes: list[str],
    reason: str | None,
    run: RunSpec,
    material: Material,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolve_room, "why_not_fusable", lambda device: missing)
    monkeypatch.setattr(resolve_room, "fuse_if_faster", lambda *_: ("none", "it was tried"))
    run = run.override("machine.compile=none", *changes)
    session, decisions = resolve(run, material, Silent())
    assert session.run.machine.fused == "none"
    assert decisions.reasons.get("fused") == reason


@pytest.mark.parametrize(("given", "kept"), [("auto", "chunked"), ("whole", "whole")])
def test_many_logits_are_computed_in_chunks(
    run: RunSpec, material: Material, given: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_part = -(-run.batch_size // 2) * run.model.context_length * 320 * 4
    run = run.override("grad_accum_steps=2", f"machine.loss={given}", "budget=2steps")
    for at_most, auto in ((of_a_part, "whole"), (of_a_part - 1, "chunked")):
        monkeypatch.setattr(machine_room, "WHOLE_LOGITS", at_most)
        session, decisions = resolve(run, material, Silent())
        assert session.run.machine.loss == (auto if given == "auto" else given)
        assert ("loss" in decisions.reasons) == (given == "auto")
    assert session.run.machine.loss == kept
    assert session.step().finite


def test_the_first_of_many_processes_decides_by_its_own_share(
    run: RunSpec, material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No loss is computed in chunks for all of a batch's logits."""
    monkeypatch.setattr(machine_room, "WHOLE_LOGITS", 4 * 32 * 320 * 4)
    run = run.override("batch_size=512", "grad_accum_steps=2", "machine.kernel=auto")
    session, decisions = resolve(run, material, Silent(), Layout(1, 64, 8))
    assert session.run.machine.loss == "whole"
    assert decisions.reasons["loss"] == "float32 logits of one process would take 164 kB"


def test_the_asked_run_is_what_the_settled_one_trains(run: RunSpec, material: Material) -> None:
    """Settling changes no value that was given."""
    session, _ = resolve(run, material, Silent())
    asked, found = (flatten(r.model_dump(by_alias=True)) for r in (run, session.run))
    for path, value in asked.items():
        assert value == "auto" or found[path] == value, path


def test_a_model_without_attention_needs_no_kernel(run: RunSpec, material: Material) -> None:
    run = run.override("model.attention.kind=none", "machine.kernel=auto", "budget=2steps")
    session, decisions = resolve(run, material, Silent())
    assert "no attention" in decisions.reasons["kernel"]
    assert session.step().finite


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is available")
def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(UserError, match=r'machine\.device: found "cuda"; expected "cpu"'):
        decide(MachineSpec(device="cuda"))


def test_fp16_is_for_gpus() -> None:
    with pytest.raises(UserError, match=r'machine\.precision: found "fp16", which needs a GPU'):
        decide(MachineSpec(device="cpu", precision="fp16"))


def test_steps_of_a_time_budget_stay_open(run: RunSpec, material: Material) -> None:
    session, decisions = resolve(run.override("budget=20s"), material, Silent())
    assert session.run.machine.num_steps == "auto"
    assert "num_steps" not in decisions.reasons


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (["model.vocab_size=200"], "model.vocab_size: found 200; expected at least 257"),
        (
            ["model.dim=1000000"],
            "model: [0-9,]+ parameters, their gradients and moments need .* --tiny$",
        ),
        (["batch_size=1000000000"], "batch_size: a step needs at least .* lower batch_size"),
        (["model.context_length=20000"], r"data\.text: the text is too short: 20001 tokens"),
        (["model.dim=100000000000000"], "model.dim: found 100000000000000; expected at most"),
        (
            ["model.dim=16777216"],
            "feedforward: the model has about .* parameters; expected at most",
        ),
    ],
)
def test_what_cannot_be_is_said_before_it_is_tried(
    run: RunSpec, material: Material, changes: list[str], line: str
) -> None:
    with pytest.raises(UserError, match=f"^{line}") as caught:
        resolve(run.override(*changes), material, Silent())
    assert len(caught.value.lines) == 1


def test_a_published_model_that_does_not_fit_may_be_scaled_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolve_room, "total_memory", lambda _: 25_000_000_000)
    with pytest.raises(UserError, match=r"raise grad_accum_steps, or scale .* --tiny$"):
        resolve_room.check_memory(load_run("llama-3.2-1b"), 128256, CPU)
    small = load_run("modern").override("dim=32", "num_layers=1", "batch_size=10000000")
    with pytest.raises(UserError, match=r"raise grad_accum_steps$"):
        resolve_room.check_memory(small, 257, CPU)


def test_a_step_that_may_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs less than the machine has at least, and about 27 GB."""
    monkeypatch.setattr(resolve_room, "total_memory", lambda _: 25_000_000_000)
    monkeypatch.setattr(resolve_room, "free_memory", lambda _: 23_000_000_000)
    run = load_run("llama-3.2-1b").override("model.context_length=256")
    with pytest.warns(
        UserWarning, match=r"^a step takes about 2\d\.?\d* GB, 23 GB are free: .* --tiny"
    ):
        resolve_room.check_memory(run, 128256, CPU)


def test_accumulation_makes_room(run: RunSpec, material: Material) -> None:
    """The check counts a part of a batch, not the whole."""
    resolve_room.check_memory(
        run.override("batch_size=1000000", "grad_accum_steps=1000000"), 257, CPU
    )
    with pytest.raises(UserError, match="raise grad_accum_steps"):
        resolve_room.check_memory(run.override("batch_size=100000000"), 257, CPU)


CPU = MachineSpec(device="cpu")


class Second(Processes):
    """The second of two processes, which has half of what a model is cut up into."""

    layout = Layout(1, 2, 2)

    def cut(self, model: Decoder) -> None:
        self.at_first = {p.device.type for p in model.parameters()}
        model.to_empty(device="cpu")


@pytest.mark.slow
def test_several_processes_have_no_whole_model_each(trained: Path) -> None:
    folder, second = RunFolder.open(trained), Second()
    material = reload_data(folder.spec, folder)
    resolve_room.resolved_session(folder, material, second)
    assert second.at_first == {"meta"}
    session, _ = resolve_room.resolved_session(folder, material)
    assert {p.device.type for p in session.model.parameters()} == {"cpu"}


# Starting from existing weights ------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    text = write_text(folder / "text.txt", 200)
    run = tiny_run(text, "budget=2steps", "evaluate.every=100", "evaluate.final_max_tokens=100")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        return archwright.train(run, out=folder / "run", quiet=True).folder.path


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def begin_from(trained: Path, text: Path, *changes: str) -> tuple[resolve_room.Session, list[str]]:
    run = tiny_run(text, f"init.from={trained}", "budget=2steps", *changes)
    said = Said()
    material = prepare_data(run, RunFolder(text.parent / "new"))
    return resolve(run, material, said)[0], said.lines


@pytest.mark.slow
def test_existing_weights_are_taken_by_name(trained: Path, text: Path) -> None:
    session, said = begin_from(trained, text)
    weights = checkpoint.read_model(trained / "model.safetensors")
    for name, tensor in session.model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    names = [name for name, _ in session.model.named_parameters()]
    assert f"{len(names)} tensors taken, 0 new" in said[0]
    assert [line.split() for line in said[1:]] == [["taken", name] for name in names]


def test_new_tensors_are_named(trained: Path, text: Path) -> None:
    session, said = begin_from(trained, text, "model.attention.qk_norm.kind=rms")
    new = [line.split()[1] for line in said[1:] if line.split()[0] == "new"]
    assert new == [name for name, _ in session.model.named_parameters() if "_norm.weight" in name]
    assert len(new) == 2
    assert f"{len(said) - 3} tensors taken, 2 new" in said[0]


def test_shapes_that_do_not_fit_are_named_one_by_one(trained: Path, text: Path) -> None:
    with pytest.raises(UserError) as caught:
        begin_from(trained, text, "model.feedforward.hidden_dim=64")
    names = [line.split(":")[0] for line in caught.value.lines]
    assert names == [f"layers.0.feedforward.{n}.weight" for n in ("gate", "up", "down")]
    assert all("shape" in line for line in caught.value.lines)


@pytest.mark.slow
def test_weights_bring_their_tokenizer(text: Path, tmp_path: Path) -> None:
    bpe = ("data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300")
    few = ("budget=1steps", "evaluate.final_max_tokens=100")
    source = archwright.train(tiny_run(text, *bpe, *few), out=tmp_path / "bpe", quiet=True)
    other = write_text(tmp_path / "other.txt", 300)
    start = f"init.from={source.folder.path}"
    tuned = archwright.train(tiny_run(other, *bpe, *few, start), out=tmp_path / "tuned", quiet=True)
    assert tuned.tokenizer.fingerprint == source.tokenizer.fingerprint
    with pytest.raises(UserError, match=r"^data\.tokenizer: found another one") as caught:
        archwright.train(tiny_run(other, *few, start), out=tmp_path / "bytes", quiet=True)
    assert "data.tokenizer.kind=file" in str(caught.value)
    file = f"data.tokenizer.path={source.folder.tokenizer_folder}"
    given = tiny_run(other, *few, start, "data.tokenizer.kind=file", file)
    tuned = archwright.train(given, out=tmp_path / "file", quiet=True)
    assert tuned.tokenizer.encode("the token").tolist() == (
        source.tokenizer.encode("the token").tolist()
    )


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("none", "init.from: none is no folder"),
        (".", r"init.from: \. holds no model.safetensors and no checkpoint"),
    ],
)
def test_weights_that_are_not_there(
    source: str, line: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=line):
        begin_from(Path(source), text)


def test_a_budget_in_flops_pays_for_documents_by_their_length(tmp_path: Path) -> None:
    """Documents of 8 tokens, in windows of 512, need fewer FLOPs than a text of 512 tokens."""
    file = tmp_path / "lines.txt"
    file.write_text("|".join(f"{i:07}" for i in range(900)))
    steps = []
    for packing in ("concat", "document_mask"):
        words = ("data.separator=|", f"data.packing={packing}", "budget=1e11flops")
        run = tiny_run(file, *words, "model.context_length=512")
        folder = RunFolder(tmp_path / packing)
        settled = resolve(run, prepare_data(run, folder), Silent())[0]
        steps.append(settled.run.machine.num_steps)
    model = build(tiny_run(file).model, device="meta", vocab_size=320)
    assert steps == [int(1e11 / (flops_per_token(model, n) * 4 * 512)) for n in (512, 8)]
    assert steps[1] > 1.5 * steps[0]
