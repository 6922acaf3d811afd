"""Evaluation against brute force: every document alone, every token by itself, in float64."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.model.model import Decoder
from archwright.runs import RunFolder
from archwright.runs.load import OpenRun
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import NextToken
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe import raw_bytes
from archwright.text.bpe_training import train_bpe
from archwright.text.corpus import open_texts
from archwright.text.tokenizer import Ids, Tokenizer
from archwright.training.evaluation import (
    compressors,
    evaluate,
    evaluate_halves,
    evaluate_text,
    held_out_windows,
)

FP32 = Precision("fp32", torch.device("cpu"))
END = "<|endoftext|>"
TEXTS = ("naïve café: ünïcode — and plain words, " * 3, "x", "short one", "a b c d e f " * 9)
CONTEXT = 24


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for i, text in enumerate(TEXTS):
        (folder / f"{i}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    inner = raw_bytes([END]) if request.param == "bytes" else train_bpe(TEXTS, 300, [END])
    return Tokenizer(inner, END)


@pytest.fixture
def store(documents: Path, tokenizer: Tokenizer, tmp_path: Path) -> TokenStore:
    return prepare_documents(
        open_texts((str(documents),), DataSpec()), tokenizer, tmp_path / "store"
    )


def model_of(tokenizer: Tokenizer, context: int = CONTEXT) -> Decoder:
    """A model that is sure of itself and wrong, so that mistakes in what is summed show."""
    spec = ModelSpec(dim=16, num_layers=2, context_length=context).override(
        "attention.num_heads=2", "attention.num_kv_heads=1", "embedding.dropout=0.5"
    )
    model = build(spec, seed=1, vocab_size=tokenizer.vocab_size)
    with torch.no_grad():
        model.head.weight.mul_(3)
    return model


def encoded(tokenizer: Tokenizer) -> list[Ids]:
    return [tokenizer.encode(text) for text in TEXTS]


def brute_force(
    tokenizer: Tokenizer, texts: Sequence[Ids], context: int, stride: int
) -> tuple[float, int]:
    """Sum -ln p of each token in the first window that holds it, one window and token at a time."""
    model = model_of(tokenizer, context).double().eval()
    nats, number = 0.0, 0
    for text in texts:
        ids = [tokenizer.end_of_text, *text.tolist()]
        start = seen = 0
        while seen < len(ids) - 1:
            stop = min(start + context, len(ids) - 1)
            first = max(0, min(start, stop - context))
            with torch.no_grad():
                logits = model(torch.tensor([ids[first:stop]])).logits[0]
            for i in range(seen, stop):
                row = logits[i - first].numpy()
                nats += math.log(np.exp(row).sum()) - row[ids[i + 1]]
                number += 1
            seen, start = stop, start + stride
    return nats, number


@pytest.mark.parametrize("stride", [3, 12, 24])
def test_it_is_the_brute_force_sum(store: TokenStore, tokenizer: Tokenizer, stride: int) -> None:
    model = model_of(tokenizer)
    windows = held_out_windows(store, tokenizer, NextToken(), CONTEXT, stride=stride)
    found = evaluate(model, windows, FP32)
    nats, number = brute_force(tokenizer, encoded(tokenizer), CONTEXT, stride)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert (found.num_tokens, found.num_bytes) == (number, num_bytes)
    assert found.nats_per_token == pytest.approx(nats / number, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(nats / number), rel=1e-5)
    assert found.bits_per_byte == pytest.approx(nats / num_bytes / math.log(2), rel=1e-6)


def test_stride_is_nothing_where_documents_fit(store: TokenStore, tokenizer: Tokenizer) -> None:
    context = 1 + max(len(tokenizer.encode(text)) for text in TEXTS)
    found = {
        stride: evaluate(
            model_of(tokenizer, context),
            held_out_windows(store, tokenizer, NextToken(), context, stride=stride),
            FP32,
        )
        for stride in (1, context // 2, context)
    }
    assert len(set(found.values())) == 1


def test_batches_of_one_row_say_the_same(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding and company change nothing."""
    model = model_of(tokenizer)
    together = evaluate(model, held_out_windows(store, tokenizer, NextToken(), CONTEXT), FP32)
    monkeypatch.setattr("archwright.training.evaluation.ROW_TOKENS", 1)
    alone = evaluate(model, held_out_windows(store, tokenizer, NextToken(), CONTEXT), FP32)
    assert alone.nats_per_token == pytest.approx(together.nats_per_token, rel=1e-6)


def test_a_cap_takes_a_part_and_counts_its_bytes(store: TokenStore, tokenizer: Tokenizer) -> None:
    windows = held_out_windows(store, tokenizer, NextToken(), CONTEXT, max_tokens=40)
    assert 0 < windows.num_tokens <= 40
    parts = [tokenizer.token_bytes[i] for ids in windows.texts() for i in ids]  # type: ignore[index]
    assert windows.num_bytes == sum(map(len, parts))
    model = model_of(tokenizer)
    found = evaluate(model, windows, FP32)
    model = model.double().eval()
    nats = number = 0
    for batch in windows:
        mask = batch.inputs.padding_mask
        lengths = [batch.targets.shape[1]] * len(batch.targets) if mask is None else mask.sum(1)
        for row, targets, length in zip(batch.inputs.tokens, batch.targets, lengths, strict=True):
            log_p = model(torch.from_numpy(row[:length])[None]).logits[0].log_softmax(-1)
            for place in range(length):
                if targets[place] >= 0:
                    nats -= log_p[place, targets[place]].item()
                    number += 1
    assert number == windows.num_tokens
    assert found.nats_per_token == pytest.approx(nats / number, rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_rests_and_comes_back(
    store: TokenStore, tokenizer: Tokenizer, training: bool
) -> None:
    model = model_of(tokenizer).train(training)
    windows = held_out_windows(store, tokenizer, NextToken(), CONTEXT)
    assert evaluate(model, windows, FP32) == evaluate(model, windows, FP32)
    assert model.training == training
    assert all(p.grad is None for p in model.parameters())


def test_it_draws_no_random_numbers(store: TokenStore, tokenizer: Tokenizer) -> None:
    before = torch.get_rng_state()
    evaluate(model_of(tokenizer), held_out_windows(store, tokenizer, NextToken(), CONTEXT), FP32)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_knows_nothing_needs_log2_of_the_vocabulary(
    store: TokenStore, tokenizer: Tokenizer
) -> None:
    model = model_of(tokenizer)
    torch.nn.init.zeros_(model.head.weight)
    found = evaluate(model, held_out_windows(store, tokenizer, NextToken(), CONTEXT), FP32)
    assert found.perplexity == pytest.approx(model.spec.vocab_size, rel=1e-5)


def test_texts_of_the_user(documents: Path, tokenizer: Tokenizer) -> None:
    spec = RunSpec(model=model_of(tokenizer).spec)
    run = OpenRun(RunFolder(documents), spec, model_of(tokenizer), tokenizer)
    found = evaluate_text(run, str(documents), stride=CONTEXT)
    nats, number = brute_force(tokenizer, encoded(tokenizer), CONTEXT, CONTEXT)
    assert found.num_bytes == sum(len(text.encode()) for text in TEXTS)
    assert found.nats_per_token == pytest.approx(nats / number, rel=1e-6)
    with pytest.raises(UserError, match="no file or folder"):
        evaluate_text(run, str(documents / "none.txt"))


def test_compressors_read_the_predicted_bytes(store: TokenStore, tokenizer: Tokenizer) -> None:
    windows = held_out_windows(store, tokenizer, NextToken(), CONTEXT)
    for baseline in compressors(windows, tokenizer):
        assert baseline.num_bytes == windows.num_bytes
        assert baseline.bits_per_byte > 0


def test_the_record_has_plain_numbers(store: TokenStore, tokenizer: Tokenizer) -> None:
    found = evaluate(
        model_of(tokenizer), held_out_windows(store, tokenizer, NextToken(), CONTEXT), FP32
    )
    assert all(type(value) in (int, float) for value in found.record().values())
    assert not np.isnan(found.nats_per_token)


def test_halves_are_every_other_window(store: TokenStore, tokenizer: Tokenizer) -> None:
    model = model_of(tokenizer)
    windows = held_out_windows(store, tokenizer, NextToken(), CONTEXT, stride=CONTEXT)
    whole, halves = evaluate_halves(model, windows, FP32)
    assert whole == evaluate(model, windows, FP32)
    model.double().eval()
    sums, number = {0: [0.0, 0.0], 1: [0.0, 0.0]}, 0
    for text in encoded(tokenizer):
        ids = [tokenizer.end_of_text, *text.tolist()]
        for seen in range(0, len(ids) - 1, CONTEXT):
            stop = min(seen + CONTEXT, len(ids) - 1)
            first = max(0, min(seen, stop - CONTEXT))
            with torch.no_grad():
                logits = model(torch.tensor([ids[first:stop]])).logits[0, seen - first :]
            targets = torch.tensor(ids[seen + 1 : stop + 1])
            sums[number % 2][0] += len(targets)
            sums[number % 2][1] += float(
                torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            )
            number += 1
    assert number > 5
    assert halves.tuning == pytest.approx(sums[0][1] / sums[0][0], rel=1e-5)
    assert sum(halves.judged_tokens) == sums[1][0]
    assert sum(halves.judged_nats) == pytest.approx(sums[1][1], rel=1e-5)


@pytest.mark.parametrize("number", [30, 700])
def test_many_documents_are_counted_each_or_with_neighbours(number: int, tmp_path: Path) -> None:
    tokenizer = Tokenizer(raw_bytes([END]), END)
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(number):
        (folder / f"{i:03}.txt").write_text("words " * 10, encoding="utf-8")
    kept = prepare_documents(open_texts((str(folder),), DataSpec()), tokenizer, tmp_path / "kept")
    windows = held_out_windows(kept, tokenizer, NextToken(), CONTEXT, stride=CONTEXT)
    _, halves = evaluate_halves(model_of(tokenizer), windows, FP32)
    # 60 bytes in three windows: each document has one or two in the half that judges.
    assert len(halves.judged_tokens) == min(number, 256)
    assert sum(halves.judged_tokens) == pytest.approx(30 * number, rel=0.02)


def test_halves_of_pieces_are_counted_in_bytes(store: TokenStore, tokenizer: Tokenizer) -> None:
    model, size = model_of(tokenizer), 8 * CONTEXT
    windows = held_out_windows(
        store, tokenizer, NextToken(), CONTEXT, stride=CONTEXT, max_bytes=10**9
    )
    whole, halves = evaluate_halves(model, windows, FP32)
    assert whole == evaluate(model, windows, FP32)
    assert halves.judged_bytes is not None
    model.double().eval()
    sums, number = {0: [0, 0.0], 1: [0, 0.0]}, 0
    for text in encoded(tokenizer):
        ids = [tokenizer.end_of_text, *text.tolist()]
        ends = np.cumsum(tokenizer.token_lengths[text])
        starts = np.concatenate([[0], ends[:-1]])
        for low in range(0, int(ends[-1]), size):
            inside = np.flatnonzero((starts >= low) & (starts < low + size)) + 1
            sums[number % 2][0] += int(tokenizer.token_lengths[np.array(ids)[inside]].sum())
            for at in range(0, len(inside), CONTEXT):
                first, stop = inside[at] - 1, min(inside[at] + CONTEXT, inside[-1] + 1) - 1
                begin = max(inside[0] - 1, min(first, stop - CONTEXT))
                with torch.no_grad():
                    logits = model(torch.tensor([ids[begin:stop]])).logits[0, first - begin :]
                targets = torch.tensor(ids[first + 1 : stop + 1])
                sums[number % 2][1] += float(
                    torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
                )
            number += 1
    assert number > 3
    assert halves.tuning_bits_per_byte == pytest.approx(
        sums[0][1] / sums[0][0] / np.log(2), rel=1e-5
    )
    assert sum(halves.judged_bytes) == sums[1][0]
    assert sum(halves.judged_nats) == pytest.approx(sums[1][1], rel=1e-5)
