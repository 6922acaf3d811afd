"""Kernel and precision follow from the processor, the mask and the shape."""

import pytest
import torch

from archwright.machine import rules
from archwright.machine.decide import Decisions, decide_kernel
from archwright.machine.rules import FLOAT32, KERNELS, PRECISIONS, Attention, Processor, decision
from archwright.model.build import build
from archwright.spec.run_spec import RunSpec

PLAIN = Attention("cpu", "fp32", 64, plain=True, plain_scores=True)


@pytest.mark.parametrize(
    ("at", "kernel"),
    [
        (PLAIN, "sdpa"),
        (PLAIN._replace(plain=False), "sdpa"),
        (PLAIN._replace(plain=False, plain_scores=False), "blockwise"),
        (PLAIN._replace(length=256), "blockwise"),
        (PLAIN._replace(precision="bf16"), "blockwise"),
        (PLAIN._replace(device="cuda", length=4096), "sdpa"),
        (PLAIN._replace(device="cuda", plain=False), "flex"),
    ],
)
def test_kernels(at: Attention, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "can_compile_for_cuda", lambda: True)
    assert decision(KERNELS, at)[0] == kernel


def test_without_a_compiler_cuda_has_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "can_compile_for_cuda", lambda: False)
    assert decision(KERNELS, PLAIN._replace(device="cuda", plain=False))[0] == "sdpa"


@pytest.mark.parametrize(
    ("changes", "plain", "plain_scores"),
    [
        ((), True, True),
        (("model.attention.mask.kind=full",), True, True),
        (("model.attention.mask.kind=window",), False, True),
        (("data.packing=document_mask",), False, True),
        (("model.attention.softcap=30",), False, False),
        (("model.attention.sinks=true",), False, False),
        (("model.position.kind=alibi",), False, False),
        (
            (
                "model.num_layers=2",
                "model.layer_kinds.near.attention.mask.kind=window",
                'model.layers.cycle=["default", "near"]',
            ),
            False,
            True,
        ),
        (("model.attention.kind=none",), True, True),
    ],
)
def test_masks_and_scores_that_sdpa_is_fast_for(
    changes: tuple[str, ...], plain: bool, plain_scores: bool, run: RunSpec
) -> None:
    run = run.override(*changes)
    model = build(run.model, device="meta", vocab_size=257)
    found = rules.attention_of(model, run, "cpu", "fp32")
    assert found == Attention("cpu", "fp32", 32, plain, plain_scores)


@pytest.mark.parametrize(
    ("at", "precision", "float32"),
    [
        (Processor("cpu", amd=False, avx512=False, bf16=False), "fp32", "highest"),
        (Processor("cpu", amd=True, avx512=False, bf16=False), "fp32", "highest"),
        (Processor("cpu", amd=False, avx512=True, bf16=True), "bf16", "highest"),
        (Processor("cpu", amd=True, avx512=True, bf16=True), "bf16", "medium"),
        (Processor("cuda", amd=False, avx512=False, bf16=True), "bf16", "highest"),
        (Processor("cuda", amd=False, avx512=False, bf16=False), "fp32", "highest"),
    ],
)
def test_precisions(
    at: Processor, precision: str, float32: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "float32_error", lambda: 4e-7)
    assert decision(PRECISIONS, at)[0] == precision
    assert decision(FLOAT32, at)[0] == float32


def test_medium_products_that_round_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "float32_error", lambda: 3e-3)
    at = Processor("cpu", amd=True, avx512=True, bf16=True)
    assert decision(FLOAT32, at)[0] == "highest"


def test_the_error_of_products_is_small_and_the_process_left_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    assert 0 < rules.float32_error(64) < 1e-2  # at most that of bfloat16
    assert torch.get_float32_matmul_precision() == before


def test_features_of_this_processor() -> None:
    at = rules.processor("cpu")
    flags = rules.cpu_info().get("flags", "").split()
    if flags:
        assert at.bf16 == any(flag in flags for flag in ("avx512_bf16", "amx_tile"))
        assert at.avx512 == ("avx512f" in flags)
    assert rules.cpu_name()


def test_the_reason_is_recorded_and_the_kernel_used(run: RunSpec) -> None:
    run = run.override("machine.kernel=auto", "model.attention.softcap=30")
    decisions = Decisions(run.machine.model_copy(update={"device": "cpu", "precision": "fp32"}))
    model = build(run.model, vocab_size=257)
    decide_kernel(decisions, model, run)
    assert decisions.machine.kernel == "blockwise"
    assert decisions.reasons["kernel"].startswith("attention on a CPU (AMD EPYC")
    assert model.layers[0].attention.kernel.run.__name__ == "blockwise"
