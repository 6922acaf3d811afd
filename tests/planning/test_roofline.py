"""Arithmetic intensities: those of the literature derived, and counted on built models."""

from itertools import product

import pytest

from archwright.model import build
from archwright.model.model import Decoder
from archwright.planning.cost import flops_per_token, next_token_flops, prefill_flops
from archwright.planning.memory import cache_bytes
from archwright.planning.roofline import PHASES, Operator, Phase, operators, ridge
from archwright.spec.hardware import load_hardware
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load, load_run


def attention(phase: Phase, texts: int, length: int, dim: int, heads: int, kv: int) -> Operator:
    """Return all of one layer's attention as one operator, with scores that are written, in numbers and not bytes."""
    mask = "causal" if phase == "decode" else "full"  # the last token sees all, and so do all
    spec = ModelSpec(dim=dim, num_layers=1, context_length=length, vocab_size=64).override(
        f"attention.num_heads={heads}",
        f"attention.num_kv_heads={kv}",
        f"attention.mask.kind={mask}",
    )
    model = build(spec, device="meta")
    found = operators(
        model,
        phase,
        texts=texts,
        length=length,
        itemsize=1,
        kernel="flex" if phase == "decode" else "eager",
    )
    some = [o for o in found if o.name in ("attention", "attention between tokens")]
    assert len(some) == 2
    sums = (sum(o.flops for o in some), sum(o.num_bytes for o in some))
    return Operator("attention", *sums, forward=sum(o.forward for o in some))


SIZES = [*product((1, 4, 64), (128, 512), (512, 2048), (4, 16))]


@pytest.mark.parametrize(("b", "n", "d", "h"), SIZES)
def test_attention_in_training(b: int, n: int, d: int, h: int) -> None:
    """FLOPs b n d^2 over numbers b n d + b h n^2 + d^2 give 1 / (1/k + 1/(b n)) with heads of k = d / h (Shazeer, 2019,
    section 2.3.1), for texts no longer than the model is wide, as there."""
    n = min(n, d)
    formula = 1 / (h / d + 1 / (b * n))
    counted = attention("training", b, n, d, h, h)
    terms = b * n * d * d, b * n * d + b * h * n * n + d * d
    assert 4 < counted.flops / (3 * terms[0]) < 20
    assert 2 < counted.num_bytes / (3 * terms[1]) < 15
    assert 0.5 < counted.intensity / formula < 9


@pytest.mark.parametrize(("b", "n", "d", "h"), SIZES)
@pytest.mark.parametrize("grouped", [False, True])
def test_attention_in_writing(b: int, n: int, d: int, h: int, grouped: bool) -> None:
    """Of each token d^2 weights and b n d numbers of the cache are read for b d^2 FLOPs: 1 / (n/d + 1/b). With one head
    of keys and values 1 / (1/d + n/(d h) + 1/b) (Shazeer, 2019, sections 2.4.1 and 3.1)."""
    counted = attention("decode", b, n, d, h, 1 if grouped else h)
    many, one = 1 / (n / d + 1 / b), 1 / (1 / d + n / (d * h) + 1 / b)
    assert 1 < counted.intensity / (one if grouped else many) < 6


def test_writing_is_bound_by_bandwidth_and_training_is_not() -> None:
    hardware = load_hardware("h100")
    model = build(load("llama-3-8b"), device="meta")
    for phase, above in (("training", True), ("prefill", True), ("decode", False)):
        found = {o.name: o for o in operators(model, phase, texts=4, length=4096)}  # type: ignore[arg-type]
        for name in ("feed-forward", "attention", "attention between tokens"):
            assert (found[name].intensity > ridge(hardware, "bf16")) == above, (phase, name)
        assert found["norms and sums"].intensity < 2


def computed(model: Decoder, phase: Phase, **asked: int) -> float:
    """Return the FLOPs of all operators but those of norms and the like, of which a plan counts none."""
    found = operators(model, phase, **asked)  # type: ignore[arg-type]
    return sum(each.flops for each in found if each.evidence == "counted")


MODELS = [
    "mixtral-8x7b",
    "albert-base",
    "bert-base",
    "electra-base",
    "t5-small",
    "reformer",
]


@pytest.mark.parametrize("name", MODELS)
def test_all_that_is_computed_is_an_operators(name: str) -> None:
    """By the FLOPs of the plan, of two stacks with a target of another length."""
    model = build(load(name), device="meta")
    target = 96 if name == "t5-small" else None
    asked = {} if target is None else {"target_length": target}
    found = computed(model, "training", texts=2, length=256, **asked)
    # No gradient goes through Reformer's hashes.
    rel = 0.01 if name == "reformer" else 1e-12
    assert found == pytest.approx(512 * flops_per_token(model, 256, target), rel=rel)


@pytest.mark.parametrize("name", ["gemma-3-1b", "mixtral-8x7b", "t5-small", "bart-base"])
def test_what_is_read_before_is_not_computed_in_writing(name: str) -> None:
    """The FLOPs of one more token of each text are those of the plan; of two stacks neither the encoder nor the maps of
    keys and values that the decoder has of the source are among them."""
    model = build(load(name), device="meta")
    found = computed(model, "decode", texts=3, length=512)
    assert found == pytest.approx(3 * next_token_flops(model, 512), rel=1e-12)
    names = [each.name for each in operators(model, "decode", texts=3, length=512)]
    assert not any(each.startswith("encoder") for each in names)


def test_a_token_stores_its_own_keys_and_values_alone() -> None:
    """Neither the other places of a cache are written, nor is the cache copied to grow it."""
    model = build(load("llama-3-8b"), device="meta")
    found = {o.name: o for o in operators(model, "decode", texts=1, length=1024)}
    assert found["attention elementwise"].num_bytes < cache_bytes(model, 1024) / 10


def test_no_operator_has_two_names() -> None:
    """Norms of all places are one operator, and a stack is named once."""
    for name in ("t5-small", "electra-base"):
        model = build(load(name), device="meta")
        names = [o.name for o in operators(model, "training", texts=1, length=64)]
        assert "norms and sums" in names
        assert not any(each.count(":") > 1 or each.startswith("norms elem") for each in names)


@pytest.mark.parametrize("name", ["gemma-3-1b", "mixtral-8x7b", "t5-small", "bart-base"])
def test_prefill_reads_all_and_asks_for_one_token(name: str) -> None:
    """The head reads one token of a text, and so does the decoder of two stacks with all its layers."""
    model = build(load(name), device="meta")
    prefill = computed(model, "prefill", texts=3, length=512)
    assert prefill == pytest.approx(3 * prefill_flops(model, 512), rel=1e-12)
    found = {each.name: each for each in operators(model, "prefill", texts=3, length=512)}
    assert found["head"].flops == 3 * 2 * model.head.weight.numel()
    if model.spec.encoder_model is not None:
        of_source, layers = model.spec.dim**2, model.spec.num_layers  # keys, and values as many
        maps = 2 * 3 * layers * (2 * 512 * of_source + 2 * of_source)
        assert found["cross-attention"].flops == maps


def test_a_token_behind_a_source_reads_keys_and_values_of_both() -> None:
    model = build(load("t5-small"), device="meta")
    found = {each.name: each for each in operators(model, "decode", texts=1, length=512)}
    cache = 6 * 512 * 2 * 512  # of 6 layers, keys and values
    for name in ("attention between tokens", "cross-attention between tokens"):
        assert 1 <= found[name].num_bytes / (2 * cache) < 1.01, name
        assert found[name].flops == pytest.approx(2 * cache, rel=0.01)  # product and sum of each


def test_one_token_reads_its_experts_and_many_read_all() -> None:
    model = build(load("mixtral-8x7b"), device="meta")
    one, many = (
        next(o for o in operators(model, "decode", texts=n, length=64) if o.name == "feed-forward")
        for n in (1, 512)
    )
    assert 3.9 < many.num_bytes / one.num_bytes < 4.2


def test_latent_attention_by_hand() -> None:
    """In DeepSeek-V3, keys of 128 + 64 and values of 128 are made of a latent of 512, for 128 heads. In decoding
    the latent itself, with its rotary key, is the key of all heads, and the latent their value (DeepSeek-AI, 2024,
    DeepSeek-V2, appendix C), so that many FLOPs are done with each number that is read."""
    model, hardware = build(load("deepseek-v3"), device="meta"), load_hardware("h200")
    layers, length = 61, 4096
    found = {
        phase: next(
            o
            for o in operators(model, phase, texts=1, length=length)
            if o.name == "attention between tokens"
        )
        for phase in PHASES
    }
    moved = 128 * (192 + 192 + 128 + 128)  # queries, keys, values and what is mixed
    assert found["prefill"].num_bytes == 2 * layers * length * moved
    assert found["training"].num_bytes == 3 * found["prefill"].num_bytes
    into_latents = 2 * 128 * 512 * (128 + 128)  # of queries, and back to values
    pairs = length * 2 * 128 * (512 + 64 + 512)
    assert found["decode"].flops == layers * (pairs + into_latents)
    # The matrices that lead into latents and back are read, too.
    assert 25 < found["decode"].intensity < ridge(hardware, "bf16")


SMALL = ("dim=64", "num_layers=3", "vocab_size=128", "context_length=32", "attention.num_heads=4")


def test_what_is_computed_number_by_number_by_hand() -> None:
    """In prefill, SiLU reads a number and writes one, and its gate reads two and writes one: 5 of 16 bits."""
    spec = load("modern").override(*SMALL, "feedforward.hidden_dim=96")
    parts = operators(build(spec, device="meta"), "prefill", texts=2, length=16)
    found = {o.name: o for o in parts}
    assert found["feed-forward elementwise"].num_bytes == 2 * 2 * 16 * 3 * 5 * 96
    assert found["feed-forward elementwise"].evidence == "estimated"
    # Two sums of each of three layers read two and write one; the sum of a norm reads less than all that it does.
    assert found["norms and sums"].num_bytes > 2 * 2 * 16 * 64 * (3 * 2 * 3)


def test_the_loss_and_the_optimizer_by_hand() -> None:
    """Logits are read twice, and their gradients written. Of each weight AdamW reads four numbers of 32 bits, its
    gradient among them, and writes three; Muon keeps one moment of a matrix, not two."""
    run = load_run("modern").override(*(f"model.{each}" for each in SMALL))
    model = build(run.model, device="meta")
    found = {o.name: o for o in operators(model, "training", texts=2, length=16, itemsize=4)}
    assert found["loss"].num_bytes == 3 * 4 * 2 * 16 * 128
    moved = 4 * 7 * model.num_parameters()
    assert found["optimizer"].num_bytes == moved
    assert not {"loss", "optimizer"} & {
        o.name for o in operators(model, "prefill", texts=2, length=16)
    }
    part = operators(model, "training", texts=2, length=16, updates=0.25)
    assert next(o for o in part if o.name == "optimizer").num_bytes == moved / 4
    muon = run.override("optimizer.kind=muon")
    found = {o.name: o for o in operators(model, "training", texts=2, length=16, run=muon)}
    matrices = sum(p.numel() for p in model.layers.parameters() if p.ndim == 2)
    assert found["optimizer"].num_bytes == moved - 2 * 4 * matrices
    steps = muon.optimizer.steps  # type: ignore[attr-defined]
    products = sum(
        2 * steps * (2 * min(p.shape) * p.numel() + min(p.shape) ** 3)
        for p in model.layers.parameters()
        if p.ndim == 2
    )
    assert found["optimizer"].flops == 12 * model.num_parameters() + products
