"""Tokens per second of greedy decoding with one set of weights: archwright beside transformers, litgpt and llama.cpp.

    python bench/decode.py [--models 30M 110M] [--rows 1 8] [--dtypes bf16 int8] [--blocks 7] [--help]

A Llama-shaped model with random weights is exported; transformers reads the export, llama.cpp a GGUF file of it, and
litgpt has weights of its own of the same shapes. llama.cpp takes part with one row, if llama-cpp-python and gguf are
installed. Everyone reads a prompt and writes as many tokens, greedily, in blocks that take turns in one process.
Ratios are medians over pairs of blocks, with their bootstrap intervals. The share of the memory's rate counts the
weights of each pass once, against the rate at which a sum reads a large tensor. The page goes to bench/results/.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.generation.reader import Reader
from archwright.hf.saving import save
from archwright.model import build
from archwright.model.model import Decoder
from archwright.model.quantisation import quantise
from bench import timing
from bench.contenders import DTYPES, SHAPES, Shape, litgpt_model, llama_spec

MODELS = {
    "30M": replace(SHAPES["29.9M"], length=1024),
    "110M": Shape(768, 12, 12, 12, 2048, 32000, 1, 1024),
}
Write = Callable[[Tensor, int], Tensor]
"""(prompt [rows, length], number) -> new tokens [rows, number], greedily."""


def ours(model: Decoder) -> Write:
    """Return the greedy reader of the package."""

    @torch.inference_mode()
    def write(prompt: Tensor, number: int) -> Tensor:
        reader, new = Reader(model), [prompt[:, :0]]
        logits = reader.read_rows(prompt)
        for _ in range(number):
            new.append(logits.argmax(-1, keepdim=True))
            logits = reader.read_rows(new[-1])
        return torch.cat(new, 1)

    return write


def transformers_modes(folder: str, dtype: torch.dtype, compiled: bool) -> dict[str, Write]:
    """Return transformers' generation from the export: with a growing cache, with a static one, and compiled."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa"
    ).eval()

    def written_with(**options: Any) -> Write:
        @torch.inference_mode()
        def write(prompt: Tensor, number: int) -> Tensor:
            found: Tensor = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                min_new_tokens=number,
                max_new_tokens=number,
                pad_token_id=0,
                **options,
            )
            return found[:, prompt.shape[1] :]

        return write

    static = {"cache_implementation": "static"}
    modes = {
        "transformers": written_with(disable_compile=True),
        "transformers, static cache": written_with(**static, disable_compile=True),
    }
    if compiled:
        compile_config = transformers.CompileConfig(fullgraph=False, mode="default")
        compile_config._compile_all_devices = True  # by default, GPUs only
        modes["transformers, compiled"] = written_with(**static, compile_config=compile_config)
    return modes


def litgpt_mode(shape: Shape, dtype: torch.dtype) -> Write:
    """Return litgpt's model with its cache, in the loop of its own `generate`."""
    model = litgpt_model(shape).to(dtype).eval()

    @torch.inference_mode()
    def write(prompt: Tensor, number: int) -> Tensor:
        rows, length = prompt.shape
        model.max_seq_length = length + number
        model.set_kv_cache(batch_size=rows, dtype=dtype)
        at, read, new = torch.arange(length), prompt, []
        for _ in range(number):
            new.append(model(read, at)[:, -1].argmax(-1, keepdim=True))
            read, at = new[-1], at[-1:] + 1
        model.clear_kv_cache()
        return torch.cat(new, 1)

    return write


def llama_cpp_mode(folder: str, shape: Shape, kind: str, args: argparse.Namespace) -> Write:
    """Return llama.cpp's greedy loop for one row, on a GGUF file of the export, without a vocabulary.

    Weights: F32, BF16, Q8_0 or Q4_0.
    """
    import gguf
    import llama_cpp
    from safetensors.torch import load_file

    types = {"fp32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
    stored = getattr(gguf.GGMLQuantizationType, types[kind])
    path = f"{folder}/{kind}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.length)
    writer.add_embedding_length(shape.dim)
    writer.add_feed_forward_length(shape.hidden_dim)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    spec = llama_spec(shape)
    writer.add_layer_norm_rms_eps(spec.norm.eps)  # type: ignore[union-attr]
    writer.add_rope_freq_base(spec.position.theta)  # type: ignore[union-attr]
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.num_layers)
    for name, weight in load_file(f"{folder}/model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # llama.cpp rotates neighbours
            pairs = weight.unflatten(0, (-1, 2, shape.head_dim // 2))  # [heads, 2, pairs, dim]
            weight = pairs.transpose(1, 2).flatten(0, 2)
        data, kept = weight.float().numpy(), stored if weight.ndim > 1 else None
        to = names.get_name(name, try_suffixes=(".weight",))
        if kept is None:
            writer.add_tensor(to, data)
        else:
            writer.add_tensor(to, gguf.quants.quantize(data, kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = llama_cpp.Llama(
        path,
        n_ctx=args.prompt + args.tokens,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        verbose=False,
    )

    def write(prompt: Tensor, number: int) -> Tensor:
        model.reset()
        tokens = model.generate(prompt[0].tolist(), temp=0.0, reset=False)
        return torch.tensor([[next(tokens) for _ in range(number)]])

    return write


def read_rate() -> float:
    """Return bytes per second at which a sum reads 256 MiB."""
    large = torch.ones(2**26)
    times = []
    for _ in range(5):
        start = timing.clock()
        large.sum()
        times.append(timing.clock() - start)
    return large.nbytes / min(times)


def compare(shape: Shape, rows: int, kind: str, args: argparse.Namespace) -> list[str]:
    """Return lines of the table for one model, number of rows and kind of weights."""
    dtype = DTYPES["bf16" if kind.startswith("int") else kind]
    model = build(llama_spec(shape), seed=0).eval().to(dtype)
    contenders: dict[str, Write] = {}
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        if rows == 1 and find_spec("llama_cpp"):
            contenders["llama.cpp"] = llama_cpp_mode(folder, shape, kind, args)
        if kind.startswith("int"):
            plain = build(llama_spec(shape), seed=0).eval().to(dtype)
            contenders["archwright, bf16"] = ours(plain)
            contenders["archwright"] = ours(quantise(model, kind))
        else:
            contenders |= transformers_modes(folder, dtype, args.compiled)
            contenders["litgpt"] = litgpt_mode(shape, dtype)
            contenders["archwright"] = ours(model)
    prompt = torch.randint(1, shape.vocab_size, (1, args.prompt)).expand(rows, -1).contiguous()
    texts = {name: write(prompt, 8) for name, write in contenders.items()}

    def timed(write: Write) -> Callable[[], float]:
        def run() -> float:
            start = timing.clock()
            write(prompt, args.tokens)
            return timing.clock() - start

        return run

    times = timing.take_turns({n: timed(w) for n, w in contenders.items()}, args.blocks)
    weights = sum(p.numel() for p in model.parameters())
    size = weights * {"fp32": 4, "bf16": 2, "int8": 1, "int4": 0.625}[kind]
    rate, lines = read_rate(), []
    for name, taken in times.items():
        per_second = args.tokens / statistics.median(taken)
        share = f"{size * per_second / rate:.0%}" if name == "archwright" else ""
        beside = "1" if name == "archwright" else timing.ratio(taken, times["archwright"])
        same = "yes" if torch.equal(texts[name], texts["archwright"]) else "no"
        cells = (str(rows), kind, name, f"{rows * per_second:.1f}", beside, share, same)
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16", "int8", "int4"])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="also transformers' compiled mode")
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    args = parser.parse_args()
    timing.prepare(args.threads)
    torch.manual_seed(0)
    parts = [
        f"# Decoding, {date.today()}",
        f"A prompt of {args.prompt} tokens and {args.tokens} new ones, greedily; {args.blocks} blocks in turns. "
        "Tokens of all rows per second; times as long as ours, with 95 % intervals; share of the memory's read rate; "
        "whether the first eight tokens are ours.",
    ]
    for name in args.models:
        head = "| rows | weights | | tokens/s | time / ours | of memory | same text |"
        lines = [f"## {name}", head + "\n|---:|---|---|---:|---:|---:|---|"]
        for rows in args.rows:
            for kind in args.dtypes:
                lines[-1] += "\n" + "\n".join(compare(MODELS[name], rows, kind, args))
        parts += lines
    parts.insert(1, timing.machine(args.threads))
    timing.write("\n\n".join(parts) + "\n", "decode", args.out)


if __name__ == "__main__":
    main()
