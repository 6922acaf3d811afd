"""Models of archwright in trainers of others: a plain loop, `transformers.Trainer` and LoRA of PEFT."""

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archwright as aw
from archwright import hf
from archwright.losses import pop_aux_losses
from archwright.model import Decoder
from archwright.parts.branch import Branch
from archwright.spec.read import load
from tests.tiny import ROOT, surroundings, write_text

transformers = pytest.importorskip("transformers")
RATE = 0.01
"""Step of a balancing bias."""


def mixture(*changes: str, balance_loss: float = 0.1) -> Decoder:
    """Return a tiny DeepSeek-V3 whose biases and balance loss are large enough to be seen."""
    spec = load("deepseek-v3").tiny().override("vocab_size=64", "context_length=32", *changes)
    experts = {"selection_bias_update_rate": RATE, "balance_loss": balance_loss, "top_groups": 2}
    plain = {"attention.scale.kind": "sqrt", "position.scaling.kind": "none"}
    return aw.build(spec.override(plain, feedforward=experts))


def biases(model: nn.Module) -> list[Tensor]:
    found = [b for name, b in model.named_buffers() if name.endswith("selection_bias")]
    assert found
    return found


def batches(number: int = 9, seed: int = 0) -> list[Tensor]:
    return [*torch.randint(64, (number, 2, 16), generator=torch.Generator().manual_seed(seed))]


def after_step(model: nn.Module) -> None:
    for branch in model.modules():
        if isinstance(branch, Branch):
            branch.after_step(updated=True)


def trained_by_hand(model: Decoder, per_step: int = 1, lr: float = 0.1) -> Iterator[float]:
    """Train a model without the wrapper; yield the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    given = batches()
    for first in range(0, len(given), per_step):
        total = 0.0
        for tokens in given[first : first + per_step]:
            logits = model(tokens).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss = (loss + sum(pop_aux_losses(model).values())) / per_step
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        after_step(model)
        yield total


def trained_in_a_loop(model: Any, per_step: int = 1, lr: float = 0.1) -> Iterator[float]:
    """Train a wrapped model; yield the loss of each step."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    model.train()
    given = batches()
    for first in range(0, len(given), per_step):
        total = 0.0
        for tokens in given[first : first + per_step]:
            out = model(input_ids=tokens, labels=tokens, num_items_in_batch=30 * per_step)
            out.loss.backward()
            total += out.loss.item()
        optimizer.step()
        optimizer.zero_grad()
        yield total


@pytest.mark.parametrize("per_step", [1, 3])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_plain_loop_has_the_losses_by_hand(per_step: int, checkpointing: bool) -> None:
    one = mixture()
    other = hf.as_pretrained(copy.deepcopy(one))
    if checkpointing:
        other.gradient_checkpointing_enable()
        assert other.is_gradient_checkpointing
    expected = [*trained_by_hand(one, per_step)]
    assert [*trained_in_a_loop(other, per_step)] == pytest.approx(expected, rel=1e-5)
    steps = len(expected)
    for a, b in zip(biases(one), biases(other), strict=True):
        assert torch.equal(a, b)
        assert a.abs().max() <= RATE * steps * 1.001
    assert any(bias.any() for bias in biases(other))
    for name, value in one.state_dict().items():
        assert torch.allclose(value, other.model.state_dict()[name], atol=1e-5), name


def test_the_loss_includes_the_auxiliary_loss() -> None:
    (tokens,) = batches(1)
    model = hf.as_pretrained(mixture()).train()
    out = model(input_ids=tokens, labels=tokens)
    plain = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert out.aux_loss.item() > 0.05
    assert out.loss.item() == pytest.approx((plain + out.aux_loss).item(), rel=1e-6)
    judged = model.eval()(input_ids=tokens, labels=tokens)
    assert judged.aux_loss is None
    assert judged.loss.item() == pytest.approx(plain.item(), rel=1e-5)
    half = model.train()(input_ids=tokens, labels=tokens, num_items_in_batch=torch.tensor(60))
    assert half.loss.item() == pytest.approx(out.loss.item() / 2, rel=1e-6)
    shifted = F.pad(tokens[:, 1:], (0, 1), value=-100)
    assert model(input_ids=tokens, shift_labels=shifted).loss.item() == pytest.approx(
        out.loss.item()
    )


def test_biases_move_once_a_step_of_an_own_optimizer() -> None:
    model, (tokens, *_) = hf.as_pretrained(mixture()).train(), batches()
    halves = [*model.parameters()][::2], [*model.parameters()][1::2]
    own = [torch.optim.SGD(half, lr=0.1) for half in halves]
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    calls: list[None] = []
    model.model.layers[1].register_module("spy", _Spy(calls))
    model(input_ids=tokens, labels=tokens).loss.backward()
    other.step()
    assert calls == []
    for optimizer in own:
        optimizer.step()
    assert len(calls) == 1
    with torch.no_grad():
        model(input_ids=tokens)
    own[0].step()
    assert len(calls) == 1


class _Spy(Branch):
    def __init__(self, calls: list[None]) -> None:
        super().__init__()
        self.calls = calls

    def after_step(self, *, updated: bool) -> None:
        self.calls.append(None)


class _Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    rows = torch.cat(batches())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trainer_of(model: Any, folder: Path, **changes: Any) -> Any:
    """Return a Trainer that reads the texts in order, with SGD at a constant rate."""
    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "max_grad_norm": 0.0,
        "num_train_epochs": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    class InOrder(transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return InOrder(
        model,
        transformers.TrainingArguments(**arguments | changes),
        train_dataset=_Texts(),
        optimizers=(optimizer, schedule),
    )


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_the_trainer_makes_the_steps_by_hand(tmp_path: Path, checkpointing: bool) -> None:
    one = mixture()
    wrapped = hf.as_pretrained(copy.deepcopy(one))
    trainer = trainer_of(wrapped, tmp_path, gradient_checkpointing=checkpointing)
    trainer.train()
    expected = [*trained_by_hand(one, 3)]
    assert any(bias.any() for bias in biases(wrapped))
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    assert losses == pytest.approx(expected, rel=1e-4)
    for a, b in zip(biases(one), biases(wrapped), strict=True):
        assert torch.equal(a, b)
    for name, value in one.state_dict().items():
        assert torch.allclose(value, wrapped.model.state_dict()[name], atol=1e-5), name


@pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
@pytest.mark.parametrize("changes", [(), ("feedforward.expert.hidden_norm.kind=rms",)])
def test_a_checkpoint_of_the_trainer_is_resumed(tmp_path: Path, changes: tuple[str, ...]) -> None:
    model = mixture(*changes)  # with them, of no published family
    whole, half = (hf.as_pretrained(copy.deepcopy(model)) for _ in range(2))
    trainer_of(whole, tmp_path / "a", save_strategy="steps", save_steps=1).train()
    saved = tmp_path / "a" / "checkpoint-1"
    assert (saved / ("model.toml" if changes else "config.json")).is_file()
    trainer_of(half, tmp_path / "b").train(resume_from_checkpoint=str(saved))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, half.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
def test_a_saved_wrapper_is_read_by_both_libraries(tmp_path: Path) -> None:
    model, (tokens, *_) = hf.as_pretrained(mixture()), batches()
    [*trained_in_a_loop(model)]
    (tmp_path / "other.txt").touch()
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    expected = model.eval()(input_ids=tokens).logits
    ours = hf.load_model(tmp_path).model(tokens).logits
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()(tokens).logits
    assert torch.equal(ours, expected)
    assert torch.allclose(theirs, expected, atol=1e-4)


def test_lora_adapts_each_map_and_biases_move(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = mixture()
    base = {name: value.clone() for name, value in model.state_dict().items()}
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(hf.as_pretrained(model), config)
    [*trained_in_a_loop(adapted)]
    adapters = {n: p for n, p in adapted.named_parameters() if "lora_B" in n}
    assert {"query_up", "out", "router"} <= {part for name in adapters for part in name.split(".")}
    assert not any(".head." in name for name in adapters)
    assert all(p.any() for p in adapters.values())
    now = {name.replace(".base_layer", ""): value for name, value in model.state_dict().items()}
    moved = [name for name, value in base.items() if not torch.equal(value, now[name])]
    assert moved
    assert all(name.endswith("selection_bias") for name in moved)
    with pytest.raises(aw.UserError, match="merge them first"):
        adapted.get_base_model().save_pretrained(tmp_path)
    (tokens, *_) = batches()
    expected = adapted.eval()(input_ids=tokens).logits
    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path)
    assert torch.allclose(hf.load_model(tmp_path).model(tokens).logits, expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_lora_in_the_trainer(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = mixture()
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(hf.as_pretrained(model), config)
    trainer_of(adapted, tmp_path, save_strategy="epoch", gradient_checkpointing=True).train()
    assert any(bias.any() for bias in biases(model))
    assert (tmp_path / "checkpoint-3" / "adapter_model.safetensors").is_file()


def test_padding_and_documents_are_those_of_the_model() -> None:
    model = mixture().eval()
    wrapped, (tokens, *_) = hf.as_pretrained(model), batches()
    real = torch.ones_like(tokens)
    real[0, :5] = 0
    at = torch.arange(16).expand(2, -1)
    expected = model(tokens, padding_mask=real.bool()).logits[real.bool()]
    assert torch.equal(wrapped(tokens, attention_mask=real).logits[real.bool()], expected)
    assert torch.equal(wrapped(tokens, position_ids=at).logits, model(tokens).logits)
    packed = torch.cat((torch.arange(9), torch.arange(7))).expand(2, -1)
    documents = (torch.arange(16) >= 9).long().expand(2, -1)
    expected = model(tokens, segment_ids=documents).logits
    assert torch.allclose(wrapped(tokens, position_ids=packed).logits, expected, atol=1e-6)
    with pytest.raises(aw.UserError, match=r"attention_mask: found shape \[2, 1, 16, 16\]"):
        wrapped(tokens, attention_mask=torch.ones(2, 1, 16, 16))
    with pytest.raises(aw.UserError, match="inputs_embeds: is no input of this model"):
        wrapped(tokens, inputs_embeds=torch.ones(2, 16, 64))


def test_generation_needs_no_cache() -> None:
    wrapped, (tokens, *_) = hf.as_pretrained(mixture()).eval(), batches()
    made = wrapped.generate(tokens, max_new_tokens=2, do_sample=False)
    for end in (16, 17):
        best = wrapped(made[:, :end]).logits[:, -1].argmax(-1)
        assert torch.equal(made[:, end], best)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("bert-base", "the mask full, which shows later tokens"),
        ("t5-small", "an encoder"),
        ("electra-small", "a generator"),
    ],
)
def test_other_models_are_refused_in_a_line(name: str, problem: str) -> None:
    model = aw.build(load(name).tiny().override("vocab_size=64"), device="meta")
    with pytest.raises(aw.UserError) as error:
        hf.as_pretrained(model)
    (line,) = error.value.lines
    assert line.startswith(f"as_pretrained: found {problem}")


@pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "notes.txt")
    page = (ROOT / "docs" / "own-loop.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code.replace("report_to=[]", "report_to=[], disable_tqdm=True, use_cpu=True"), names)
    assert any(bias.any() for bias in biases(names["model"]))
    assert (tmp_path / "merged" / "config.json").is_file()


@pytest.mark.slow
def test_ranks_balance_as_one_process(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS, "utf-8")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(
        [sys.executable, *words], env=surroundings(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


RANKS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from archwright import hf
from tests.hf.test_as_pretrained import batches, biases, mixture, trained_by_hand

dist.init_process_group("gloo")
rank, model, one = dist.get_rank(), mixture(balance_loss=0.0), mixture(balance_loss=0.0)
ranks = DistributedDataParallel(hf.as_pretrained(model)).train()
optimizer = torch.optim.SGD(ranks.parameters(), lr=0.1)
for tokens in batches():
    optimizer.zero_grad()
    ranks(input_ids=tokens[rank, None], labels=tokens[rank, None]).loss.backward()
    optimizer.step()
list(trained_by_hand(one))
assert all(torch.equal(a, b) for a, b in zip(biases(one), biases(model), strict=True))
dist.destroy_process_group()
"""
