"""Text as LaTeX."""

import unicodedata

ESCAPES = {
    **{c: f"\\{c}" for c in "&%$#_"},
    **{"{": r"\{", "}": r"\}", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"},
    **{"^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$", '"': "''"},
    **{
        "\N{MINUS SIGN}": "$-$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "→": r"$\to$",
        "–": "--",
        "—": "---",
    },
    **{"…": r"\dots{}", "’": "'", "‘": "`", "“": "``", "”": "''", "µ": r"$\mu$", "μ": r"$\mu$"},
    **{"\N{NO-BREAK SPACE}": "~", "\n": " "},
}


def escaped(text: str, *, braces: bool = False) -> str:
    """Return text escaped for LaTeX. Letters unknown to pdflatex become code points.

    Args:
        braces: Keep braces, for grouping.
    """
    return "".join(c if braces and c in "{}" else _letter(c) for c in text)


def _letter(c: str) -> str:
    if c in ESCAPES:
        return ESCAPES[c]
    # LaTeX's first fonts have ASCII, and put accents on its letters.
    if " " <= c <= "~" or (c.isalpha() and "À" <= c <= "ÿ" and c not in "ÐÞðþ"):
        return c
    plain = unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode()
    return "".join(ESCAPES.get(p, p) for p in plain if p.isprintable()) or f"[U+{ord(c):04X}]"
