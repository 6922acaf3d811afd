"""archwright show"""

from collections.abc import Sequence

from archwright.cli.words import Parser, add_parts_option, load_parts
from archwright.spec.read import flatten, load_with_blame, override, parameter_counts, toml_value
from archwright.spec.rules import suspicions

ABOUT = "Show what a model chose: every value that is not left at its default, or all of them."

EXAMPLES = """\
  archwright show modern
  archwright show modern --all               defaults, too, and what "auto" comes to
  archwright show modern --blame             which file and which source set each value
  archwright show modern dim=256 norm.kind=layer"""


def run(words: Sequence[str]) -> int:
    """Print a model's values."""
    parser = Parser("show", ABOUT, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a model or a TOML file")
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change")
    parser.add_argument("--all", action="store_true", help="show defaults, too")
    parser.add_argument("--blame", action="store_true", help="say where each value comes from")
    add_parts_option(parser)
    options = parser.parse(words)
    load_parts(options.parts)
    loaded = load_with_blame(options.model)
    spec = override(loaded.spec, options.assignments)
    given = flatten(spec.model_dump())
    resolved = flatten(spec.resolved().model_dump())
    set_here = {assignment.partition("=")[0] for assignment in options.assignments}
    print(_title(spec.name, spec.source, bool(options.assignments)))
    width = max(map(len, resolved))
    for path, value in resolved.items():
        origin = loaded.blame.get(path)
        is_default = path not in set_here and (origin is None or origin.file == "default")
        if path.split(".")[0] in ("name", "source", "sources") or (
            is_default and not options.all and not options.blame
        ):
            continue
        auto = "   (auto)" if given.get(path) == "auto" else ""
        said = _blame(path, set_here, origin) if options.blame else ""
        print(f"{path:<{width}}  {toml_value(value)}{auto}{said}")
    for line in suspicions(spec):
        print(f"\nwarning: {line}")
    return 0


def _title(name: str, source: str, changed: bool) -> str:
    count = parameter_counts().get(name)
    size = f", {count / 1e6:,.1f}M parameters" if count and not changed else ""
    return f"{name}{size}\n{source}\n"


def _blame(path: str, set_here: set[str], origin: object) -> str:
    if path in set_here:
        return "   # the command line"
    file, source = getattr(origin, "file", "default"), getattr(origin, "source", "")
    return f"   # {file}{': ' + source if source else ''}"
