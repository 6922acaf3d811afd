"""`python -m tests.golden [NAMES | --renew]`: print losses, names, draws and hashes, or keep those of all.

Renewing is right where a composition was added, or where numbers were meant to change: the arithmetic of a choice was
wrong, or a default was. Then say so in the commit, and raise NUMERICS in `archwright/lab/running/run_cache.py` first,
so that no study uses runs of before; other losses are not written under the same number. It is wrong after moving,
renaming or simplifying code: what moved then is a mistake.
"""

import json
import os
import re
import sys
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from archwright.lab.running.run_cache import NUMERICS
from tests.golden.record import COMPOSITIONS, GOLDEN, other_numbers, record


def main(*words: str) -> None:
    """Compute the named compositions, or all, and print them; or write all down and say which parts have changed."""
    if words != ("--renew",):
        print(json.dumps({name: record(name) for name in words or COMPOSITIONS}))
        return
    new = {name: record(name) for name in COMPOSITIONS}
    old = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for name, kept in new.items():
        changed = [key for key, value in kept.items() if old.get(name, {}).get(key) != value]
        print(f"{name}: {', '.join(changed) or 'as before'}")
    differing = [n for n in new if n in old and other_numbers(new[n], old[n])]
    if differing and old["numerics"] == NUMERICS:
        sys.exit(
            f"the losses of {', '.join(differing)} differ: if that is meant, raise NUMERICS in "
            "archwright/lab/running/run_cache.py and renew again; nothing was written"
        )
    GOLDEN.write_text(_json({"numerics": NUMERICS} | new), encoding="utf-8")
    print(__doc__)


def _json(golden: dict[str, Any]) -> str:
    """Write a list of numbers in one line, so that changes can be read."""
    text = json.dumps(golden, indent=1)
    return re.sub(r"\[[^\[\]]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
