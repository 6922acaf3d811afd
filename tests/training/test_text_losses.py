"""Losses of a text by place, against brute force: one token at a time, one resampled text at a time."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import archwright as aw
from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.model import build
from archwright.runs import RunFolder
from archwright.runs.load import OpenRun
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe import raw_bytes
from archwright.text.bpe_training import train_bpe
from archwright.text.corpus import open_texts
from archwright.text.tokenizer import Tokenizer
from archwright.training.evaluation import losses_of
from archwright.training.paired import compare_on_text
from archwright.training.text_losses import Clusters, Curve

END = "<|endoftext|>"
CONTEXT = 16


def texts(number: int) -> list[str]:
    dice = np.random.default_rng(0)
    letters = np.array(list("abcdefgh é"))
    return ["".join(dice.choice(letters, dice.integers(3, 90))) for _ in range(number)]


def run_of(tokenizer: Tokenizer, path: Path, seed: int = 1, *settings: str) -> OpenRun:
    """A run of a model with random weights."""
    spec = RunSpec().override(
        *("model.dim=16", "model.num_layers=1", f"model.context_length={CONTEXT}"),
        *("model.attention.num_heads=2", "model.attention.num_kv_heads=1", *settings),
    )
    model = build(spec.model, seed=seed, vocab_size=tokenizer.vocab_size).eval()
    with torch.no_grad():
        model.head.weight.mul_(5)
    return OpenRun(RunFolder(path), spec, model, tokenizer)


def tokenizer_of(kind: str) -> Tokenizer:
    inner = raw_bytes([END]) if kind == "bytes" else train_bpe(texts(30), 280, [END])
    return Tokenizer(inner, END)


def written(folder: Path, number: int) -> str:
    folder.mkdir()
    for i, text in enumerate(texts(number)):
        (folder / f"{i:03}.txt").write_text(text, encoding="utf-8")
    return str(folder)


def store_of(folder: str, tokenizer: Tokenizer, to: Path) -> TokenStore:
    return prepare_documents(open_texts((folder,), DataSpec()), tokenizer, to)


@torch.no_grad()
def token_losses(run: OpenRun, ids: list[int], context: int, stride: int) -> list[float]:
    """-ln p of each token of a document, in the first window that holds it."""
    losses: list[float] = []
    start = 0
    while len(losses) < len(ids) - 1:
        stop = min(start + context, len(ids) - 1)
        first = max(0, min(start, stop - context))
        log_p = run.model(torch.tensor([ids[first:stop]])).logits[0].double().log_softmax(-1)
        for i in range(len(losses), stop):
            losses.append(-float(log_p[i - first, ids[i + 1]]))
        start += stride
    return losses


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_sums_of_documents_are_those_of_brute_force(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind)
    store = store_of(written(tmp_path / "texts", 25), tokenizer, tmp_path / "store")
    run = run_of(tokenizer, tmp_path)
    found, parts = losses_of(run, store)
    documents = [store.document(i).tolist() for i in range(store.num_documents)]
    losses = [token_losses(run, ids, CONTEXT, CONTEXT // 2) for ids in documents]
    assert found.resampled == "25 documents"
    assert parts.nats == pytest.approx([sum(each) for each in losses], rel=1e-5)
    assert parts.tokens.tolist() == [len(each) for each in losses]
    assert parts.num_bytes is not None
    assert parts.num_bytes.tolist() == store.document_bytes.tolist()
    assert found.nats_per_token == pytest.approx(parts.nats.sum() / parts.tokens.sum())
    assert found.bits_per_byte == pytest.approx(
        parts.nats.sum() / parts.num_bytes.sum() / math.log(2)
    )


def test_few_documents_are_resampled_in_stretches_of_equal_size(tmp_path: Path) -> None:
    folder = written(tmp_path / "texts", 3)
    sizes = []
    for kind in ("bytes", "bpe"):
        tokenizer = tokenizer_of(kind)
        run = run_of(tokenizer, tmp_path)
        found, parts = losses_of(run, store_of(folder, tokenizer, tmp_path / kind))
        assert found.resampled == f"{len(parts.nats)} stretches of the text"
        assert parts.nats.sum() / parts.tokens.sum() == pytest.approx(found.nats_per_token)
        assert parts.num_bytes is not None
        assert parts.num_bytes.sum() == found.num_bytes
        sizes.append(parts.num_bytes)
    assert abs(sizes[0] - sizes[1]).max() <= 8  # bytes of a token that crosses a border


def test_intervals_cover_the_mean_of_all_texts() -> None:
    """Of 200 samples of documents, about 95 % have an interval with the ratio of all documents."""
    dice = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        tokens = dice.integers(10, 200, 60).astype(float)
        nats = tokens * (2 + dice.normal(0, 0.5, 60))
        ends = Clusters("documents", nats, tokens, None).interval()
        assert ends is not None
        hits += ends[0] <= 2 <= ends[1]
    assert 178 <= hits <= 198
    assert Clusters("documents", nats, tokens, None).interval() == ends
    assert Clusters("documents", nats, tokens, None).interval(per_byte=True) is None
    assert Clusters("stretches", nats[:1], tokens[:1], None).interval() is None


def test_the_curve_is_the_mean_at_each_position(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bytes")
    folder = written(tmp_path / "texts", 20)
    run = run_of(tokenizer, tmp_path)
    length = 2 * CONTEXT
    found = aw.evaluate_text(run, folder, length=length)
    sums: list[list[float]] = [[] for _ in range(length)]
    for text in texts(20):
        ids = [tokenizer.begin_of_text, *tokenizer.encode(text).tolist()]
        for start in range(0, len(ids) - length, length):
            window = ids[start : start + length + 1]
            for i, loss in enumerate(token_losses(run, window, length, length)):
                sums[i].append(loss)
    buckets = found.by_position
    assert buckets is not None
    assert [(b.first, b.last) for b in buckets] == [
        (1, 1),
        (2, 2),
        (3, 4),
        (5, 8),
        (9, 16),
        (17, 32),
    ]
    for bucket in buckets:
        losses = [x for each in sums[bucket.first - 1 : bucket.last] for x in each]
        assert bucket.num_tokens == len(losses)
        assert bucket.nats_per_token == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_curve_of_short_documents_is_shorter(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("a bc def 12", encoding="utf-8")
    store = store_of(str(tmp_path / "short.txt"), tokenizer_of("bytes"), tmp_path / "store")
    assert Curve(store, 64, 64).length == 8
    assert len(Curve(store, 64, 64)) == 8
    assert Curve(store, 12, 12).buckets() == ()


def test_positions_end_and_documents_too(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bytes")
    folder = written(tmp_path / "texts", 4)
    run = run_of(tokenizer, tmp_path, 1, "model.position.kind=learned")
    with pytest.raises(
        UserError, match=r"^length: found 32; expected at most 16, where the learned"
    ):
        aw.evaluate_text(run, folder, length=32)
    with pytest.raises(UserError, match=r"^length: found 4000; expected 1 to \d+, the tokens of"):
        aw.evaluate_text(run, folder, length=4000)


def test_a_difference_is_paired(tmp_path: Path) -> None:
    """The interval of a small change of a model is far narrower than that of its loss."""
    tokenizer = tokenizer_of("bytes")
    folder = written(tmp_path / "texts", 30)
    a, b = run_of(tokenizer, tmp_path), run_of(tokenizer, tmp_path)
    with torch.no_grad():
        b.model.head.weight.mul_(0.99)
    found = compare_on_text(a, b, folder)
    assert found.nats_per_token is not None
    assert found.nats_per_token.interval is not None
    low, high = found.nats_per_token.interval
    mean = found.second.nats_per_token - found.first.nats_per_token
    assert found.nats_per_token.mean == pytest.approx(mean)
    assert low < mean < high
    assert found.first.interval is not None
    assert high - low < 0.1 * (found.first.interval[1] - found.first.interval[0])
    assert found.first == aw.evaluate_text(a, folder)
    same = compare_on_text(a, a, folder).bits_per_byte
    assert same is not None
    assert (same.mean, same.interval) == (0, (0, 0))


@pytest.mark.parametrize("number", [5, 30])
def test_different_tokenizers_are_compared_in_bits_per_byte(number: int, tmp_path: Path) -> None:
    folder = written(tmp_path / "texts", number)
    a, b = (run_of(tokenizer_of(kind), tmp_path) for kind in ("bytes", "bpe"))
    found = compare_on_text(a, b, folder)
    assert found.nats_per_token is None
    assert found.bits_per_byte is not None
    assert found.bits_per_byte.interval is not None
    assert (
        found.bits_per_byte.interval[0] < found.bits_per_byte.mean < found.bits_per_byte.interval[1]
    )
    with pytest.raises(UserError, match="found - with two tokenizers"):
        compare_on_text(a, b, "-")


def test_another_objective_has_no_difference(tmp_path: Path) -> None:
    tokenizer = Tokenizer(raw_bytes([END, "<|mask|>"]), END)
    folder = written(tmp_path / "texts", 3)
    settings = ("objective.kind=prefix_lm", "model.attention.mask.kind=prefix")
    a, b = run_of(tokenizer, tmp_path), run_of(tokenizer, tmp_path / "b", 1, *settings)
    with pytest.raises(UserError, match='has the objective "prefix_lm", whose loss is not that of'):
        compare_on_text(a, b, folder)
    alone = aw.evaluate_text(b, folder)
    assert alone.interval is not None
    assert alone.bits_per_byte_interval is alone.by_position is None
    with pytest.raises(UserError, match=r'length: .* has the objective "prefix_lm"'):
        aw.evaluate_text(b, folder, length=8)


def test_a_dtype_changes_little(tmp_path: Path) -> None:
    run = run_of(tokenizer_of("bytes"), tmp_path)
    folder = written(tmp_path / "texts", 5)
    exact = aw.evaluate_text(run, folder)
    rounded = aw.evaluate_text(run, folder, device="auto", dtype="bfloat16")
    assert rounded.nats_per_token == pytest.approx(exact.nats_per_token, rel=0.02)
    assert rounded.nats_per_token != exact.nats_per_token
