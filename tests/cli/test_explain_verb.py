"""`archwright explain`: words of the field, of other programs and of files from outside, however they are spelled."""

from pathlib import Path

import pytest

from archwright.cli import explain_verb, main
from archwright.cli.listings import listing
from archwright.cli.new_verb import FOLDER
from archwright.spec.errors import UserError


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (("qk-norm", "qk_norm", "QK norm", "attention.qk_norm"), "attention.qk_norm"),
        (("sliding-window", "sliding_window", "mask.window"), "mask: window"),
        (("attention", "model.attention"), "attention"),
        (("d_ff", "d-ff"), "feedforward.hidden_dim"),
        (("gradient clipping",), "max_grad_norm"),
        (("mfu",), "utilisation, utilization, MFU"),
        (("kv-cache", "KVCache", "KV cache"), "kv cache"),
        (("parallel layers",), "residual: parallel"),
        (("rotary position embeddings",), "position: rope"),
        (("linear attention",), "linear attention"),
        (("tokens",), "token"),
        (("top-p", "nucleus_sampling"), "top-p, nucleus sampling"),
        (("led",), "model: led-base, led-large"),
        (("llama-3-8b", "Llama-3-8B"), "model: llama-3-8b"),
        (("norm", "norm.kind", "model.norm.kind"), "norm"),
    ],
)
def test_words_of_the_field_are_explained(words: tuple[str, ...], first: str) -> None:
    known = listing("choices")
    for word in words:
        (lines, *_), *_ = explain_verb._explanations(word, known)
        assert lines[0] == first


@pytest.mark.parametrize("word", ["", " ", "-", "model."])
def test_no_word_is_no_axis(word: str) -> None:
    with pytest.raises(UserError, match="expected a kind, an option, an axis"):
        [*explain_verb._explanations(word, listing("choices"))]


def test_every_word_of_the_notes_is_explained() -> None:
    words = (
        "perplexity, kv cache, attention, swish, sine, sinusoidal, d_ff, d_model, heads, head dimension, vocabulary, "
        "vocabulary size, biases, no bias, double norm, sandwich norm, serial, parallel layers, relative position, "
        "absolute positions, learned positions, aspect ratio, sparse attention, led, longformer, reformer, lsh, "
        "locality-sensitive hashing, reversible layers, bpe, byte-pair encoding, tokenizer, tokenization, embedding, "
        "init, initialization, truncated normal, top-p, top-k, temperature, gradient clipping, clipping, "
        "gradient norm, vanishing gradients, cross-entropy, sgd, adam, adamw, muon, mfu, flops, pre-norm, post-norm, "
        "layernorm, rmsnorm, gelu, relu, silu, glu, reglu, geglu, swiglu, gated linear unit, gating, activation, "
        "activation function, ffn, mlp, ffn ratio, rope, rotary, alibi, t5 bias, nope, no position, extrapolation, "
        "residual stream, residual connection, norm, normalization, dropout, weight decay, warmup, warm-up, "
        "cosine schedule, learning rate, batch size, z-loss, qk-norm, soft-cap, logit soft-capping, softmax, logits, "
        "loss spike, overflow, gqa, mqa, mha, mla, multi-head attention, grouped-query attention, "
        "multi-query attention, arithmetic intensity, roofline, sliding window, swa, interleaving, causal mask, "
        "encoder-decoder, decoder-only, moe, mixture of experts, ssm, linear attention, scaling law, chinchilla, "
        "depth, width, expressiveness, permutation invariant, unicode, special tokens, end of text, bits per byte, "
        "epsilon, bf16, fp16, precision, checkpoint, tied embeddings, weight tying, prefill, decoding, generation, "
        "autoregressive, memory, parameters, cargo culting, convergence, xavier, kv heads, query, key, value, tokens, "
        "context length, rope theta, bert, gpt-2, gemma 2, transformer, original transformer, hidden states, "
        "regularization, data, epoch, throughput, latency, stability, teacher forcing, ablation"
    )
    for word in words.split(", "):
        assert list(explain_verb._explanations(word, listing("choices"))), word


def test_commands_of_a_choice_from_outside_name_its_file(
    files: Path, visitors: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "my norm.py").write_text((FOLDER / "norm.py").read_text("utf-8"), "utf-8")
    assert main(["explain", "my-norm", "--parts", "my norm.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if "archwright " in line]
    assert len(commands) == 2
    assert all(line.endswith(" --parts 'my norm.py'") for line in commands)
    assert "archwright train modern model.norm.kind=my_norm" in commands[0]
