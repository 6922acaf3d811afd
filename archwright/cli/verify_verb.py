"""The command `archwright verify`: compare a checkpoint's outputs here and in transformers."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

from archwright.cli.parser import Parser, print_table

ABOUT = """\
Compare the logits of a checkpoint, and the token ids of a text, with transformers, which must be installed.
Print a certificate for float32 and bfloat16. The exit code is 0 if the logits are equal within rounding and
the ids are equal, else 1."""

EXAMPLES = """\
  archwright verify Llama-3.2-1B
  archwright verify hf/modern --json"""


def run(words: Sequence[str]) -> int:
    """Print a comparison of a checkpoint's outputs here and in transformers."""
    parser = Parser("verify", ABOUT, EXAMPLES)
    parser.add_argument("folder", metavar="FOLDER", help="a checkpoint in Hugging Face's layout")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse(words)
    from archwright.hf import verify

    result = verify(options.folder)
    if options.json:
        record = asdict(result) | {"agrees": result.agrees}
        for comparison in record["comparisons"]:
            comparison["rounding"] = None if math.isnan(r := comparison["rounding"]) else r
        print(json.dumps(record, indent=2))
        return 0 if result.agrees else 1
    print(
        f"{options.folder}: {result.family} ({result.architecture}), transformers {result.transformers}"
    )
    print(f"torch {result.torch}; 2 texts of random tokens, one with padding at its end\n")
    ratios = (c.rounding for c in result.comparisons)
    columns = [
        ["", *(c.dtype for c in result.comparisons)],
        ["largest difference of logits", *(f"{c.max_difference:.1e}" for c in result.comparisons)],
        ["over their spread", *(f"{c.relative:.1e}" for c in result.comparisons)],
        ["KL divergence, nats", *(f"{c.divergence:.1e}" for c in result.comparisons)],
        [
            "rounding error over theirs",
            *("-" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios),
        ],
        ["same most likely token", *(f"{c.top_1:.1%}" for c in result.comparisons)],
        ["first component to diverge", *(c.first or "none" for c in result.comparisons)],
        ["within rounding", *("yes" if c.agrees else "no" for c in result.comparisons)],
    ]
    print_table(columns)
    print(f"a text, tokenized by both: {result.text}")
    return 0 if result.agrees else 1
