"""Figures of the page on objectives: perplexity against bits per byte, and settings of sampling."""

import math
import sysconfig
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from archwright.text.bpe_training import train_bpe
from archwright.text.synthetic_pairs import draw, source_text
from archwright.text.tokenizer import Tokenizer

SIZES = (256, 300, 400, 512, 700, 1024)
END = "<|end|>"
LABELS = {10: "\\n", 32: "␣"}
"""Labels of bytes that print nothing."""


def perplexity_and_bits() -> Figure:
    """Unigram models of one text, by vocabulary: perplexity per token, and bits per byte."""
    generator = np.random.default_rng(0)
    text = "\n".join(source_text(draw(generator)) for _ in range(4000))
    num_bytes = len(text.encode())
    perplexities, bits = [], []
    for size in SIZES:
        if size == 256:
            ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        else:
            ids = Tokenizer(train_bpe([text], size, [END]), END).encode(text)
        train, test = np.array_split(ids, 2)
        share = (np.bincount(train, minlength=size) + 1) / (len(train) + size)
        nats = float(-np.log(share[test]).mean())
        perplexities.append(math.exp(nats))
        bits.append(nats / math.log(2) * len(ids) / num_bytes)
    figure, (left, right) = plt.subplots(1, 2)
    left.plot(SIZES, perplexities, "o-", label="unigram model")
    left.plot(SIZES, SIZES, ":", color="#808080", label="uniform model")
    left.set(xscale="log", yscale="log", ylabel="perplexity per token")
    left.legend()
    right.plot(SIZES, bits, "o-", color="C1")
    right.set(xscale="log", ylim=(0, 4.5), ylabel="bits per byte")
    for axes in (left, right):
        axes.set(xlabel="tokens in the vocabulary")
        axes.set_xticks((256, 512, 1024), ("256", "512", "1,024"))
        axes.set_xticks([], minor=True)
    return figure


def temperature() -> Figure:
    """Probabilities of the byte after "re" in Python's library, and effective choices."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)
    after = np.frombuffer(text, np.uint8)[2:]
    pieces = np.lib.stride_tricks.sliding_window_view(np.frombuffer(text, np.uint8), 2)[:-1]
    follows = (pieces == np.frombuffer(b"re", np.uint8)).all(1)
    counts = np.bincount(after[follows], minlength=256)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    logits = torch.tensor(np.log(counts[order] / counts.sum()))
    figure, (left, right) = plt.subplots(1, 2)
    shown = 16
    for temperature in (0.5, 1.0, 2.0):
        p = (logits / temperature).softmax(-1)
        kept = (p.cumsum(-1) - p < 0.9).numpy()
        line = left.plot(p[:shown], "-", lw=1, label=f"T = {temperature:g}")[0]
        places = np.arange(len(p))
        for chosen, style in ((kept, "full"), (~kept, "none")):
            at = np.flatnonzero(chosen[:shown])
            left.plot(places[at], p[at], "o", color=line.get_color(), fillstyle=style, markersize=4)
    left.set_xticks(range(shown), [LABELS.get(int(i), chr(i)) for i in order[:shown]])
    left.set(xlabel='byte after "re"', ylabel="probability")
    left.legend()
    temperatures = np.linspace(0.1, 3, 30)
    for label, top_k, top_p in (("all", 256, 1.0), ("top-p 0.9", 256, 0.9), ("top-k 5", 5, 1.0)):
        choices = []
        for temperature in temperatures:
            p = (logits[:top_k] / temperature).softmax(-1)
            p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0)
            p = p / p.sum()
            choices.append(float((-torch.special.xlogy(p, p).sum()).exp()))
        right.plot(temperatures, choices, label=label)
    right.set(xlabel="temperature", ylabel="effective choices", ylim=(0, None))
    right.legend()
    return figure
