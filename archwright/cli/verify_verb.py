"""archwright verify"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

from archwright.cli.parser import Parser, print_table

ABOUT = """\
Compare a checkpoint's logits here with those of transformers, which must be installed, in float32 and in
bfloat16, and the ids of a text, and print a certificate. The exit code is 0 if logits are the same within
rounding and ids are the same, else 1."""

EXAMPLES = """\
  archwright verify Llama-3.2-1B
  archwright verify hf/modern --json"""


def run(words: Sequence[str]) -> int:
    """Print a certificate."""
    parser = Parser("verify", ABOUT, EXAMPLES)
    parser.add_argument("folder", metavar="FOLDER", help="a checkpoint in Hugging Face's layout")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse(words)
    from archwright.hf import verify

    found = verify(options.folder)
    if options.json:
        record = asdict(found) | {"agrees": found.agrees}
        for comparison in record["comparisons"]:
            comparison["rounding"] = None if math.isnan(r := comparison["rounding"]) else r
        print(json.dumps(record, indent=2))
        return 0 if found.agrees else 1
    print(
        f"{options.folder}: {found.family} ({found.architecture}) beside transformers {found.transformers}"
    )
    print(f"torch {found.torch}; 2 texts of random tokens, one with padding at its end\n")
    ratios = (c.rounding for c in found.comparisons)
    columns = [
        ["", *(c.dtype for c in found.comparisons)],
        ["largest difference of logits", *(f"{c.max_difference:.1e}" for c in found.comparisons)],
        ["over their spread", *(f"{c.relative:.1e}" for c in found.comparisons)],
        ["KL divergence, nats", *(f"{c.divergence:.1e}" for c in found.comparisons)],
        [
            "rounding error over theirs",
            *("-" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios),
        ],
        ["same most likely token", *(f"{c.top_1:.1%}" for c in found.comparisons)],
        ["first component to diverge", *(c.first or "none" for c in found.comparisons)],
        ["within rounding", *("yes" if c.agrees else "no" for c in found.comparisons)],
    ]
    print_table(columns)
    print(f"a text, tokenized by both: {found.text}")
    return 0 if found.agrees else 1
