"""What mkdocs does not find under docs/: README, CONTRIBUTING, results of benches, and a page for each public module.

Links in pages are those that work in a checkout; here they become links of the site.
"""

import ast
import html
import posixpath
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = "archwright"
OF_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CITATION.cff": "CITATION.cff",
}
"""Pages beside docs/, by their path in a checkout."""
RESULTS = "bench/results"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def modules() -> Iterator[str]:
    """Yield the path of each public module, a package's as that of its folder."""
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        path = file.relative_to(ROOT)
        if (file.parent / "__init__.py").is_file() and not any(
            part.startswith("_") and part != "__init__.py" for part in path.parts
        ):
            yield (path.parent if path.name == "__init__.py" else path).as_posix()


def page_of(path: str) -> str | None:
    """Return the site's page of a file or folder of a checkout, or None where it has none."""
    if path in OF_ROOT:
        return OF_ROOT[path]
    if path == RESULTS:
        return "results/index.md"
    if path.startswith(f"{RESULTS}/"):
        return f"results/{posixpath.basename(path)}"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == PACKAGE or path.startswith(f"{PACKAGE}/"):
        inside = path.removeprefix(PACKAGE).strip("/")
        is_file = inside.endswith(".py") and not inside.endswith("__init__.py")
        name = inside.removesuffix("__init__.py").removesuffix(".py").strip("/")
        return posixpath.join(
            "reference", f"{name}.md" if is_file else f"{name}/index.md".lstrip("/")
        )
    return None


def source_of(page: str) -> str:
    """Return where a page of the site lies in a checkout."""
    known = {site: path for path, site in OF_ROOT.items()}
    if page in known:
        return known[page]
    return (
        f"{RESULTS}/{posixpath.basename(page)}" if page.startswith("results/") else f"docs/{page}"
    )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the reference to the navigation, as a tree of packages."""
    tree: dict[str, Any] = {}
    for path in modules():
        place = tree
        for part in Path(path).parts[1:]:
            place = place.setdefault(part, {})
    assert config.nav is not None
    config.nav.append({"API": [page_of(PACKAGE), *_branch(tree, PACKAGE)]})
    return config


def _branch(tree: dict[str, Any], path: str) -> list[dict[str, Any]]:
    found = []
    for name, inside in tree.items():
        here = f"{path}/{name}"
        pages: Any = [page_of(here), *_branch(inside, here)] if inside else page_of(here)
        found.append({name.removesuffix(".py"): pages})
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""

    def add(page: str, content: str) -> None:
        files.append(File.generated(config, page, content=content))

    for path, page in OF_ROOT.items():
        if (ROOT / path).is_file():
            add(page, (ROOT / path).read_text("utf-8"))
    results = sorted((ROOT / RESULTS).glob("*.md"), reverse=True)
    for file in results:
        add(f"results/{file.name}", file.read_text("utf-8"))
    lines = [f"- [{file.stem}]({file.name})" for file in results]
    add("results/index.md", "\n".join(["# Results of benches", "", *lines, ""]))
    for path in modules():
        page = page_of(path)
        assert page is not None
        name = path.removesuffix(".py").replace("/", ".")
        names = f"\n{public_names()}" if path == PACKAGE else ""
        add(page, f"# {name}\n\n::: {name}\n{names}")
    return files


def public_names() -> str:
    """Return a table of what `import archwright` brings, each with its signature's page and its first sentence."""
    root = ast.parse((ROOT / PACKAGE / "__init__.py").read_text("utf-8"))
    imports = (node for node in ast.walk(root) if isinstance(node, ast.ImportFrom))
    homes = {
        name.name: node.module
        for node in imports
        if node.module and node.module.startswith(f"{PACKAGE}.")
        for name in node.names
    }
    rows = [
        f"| [`{name}`][{home}.{name}] | {first_sentence(home, name)} |"
        for name, home in sorted(homes.items(), key=lambda entry: entry[0].lower())
    ]
    return "\n".join(["## Names", "", "| name | what it is |", "|---|---|", *rows, ""])


def first_sentence(module: str, name: str) -> str:
    """Return the first sentence of the docstring of a public function, class or second name."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    kinds = (ast.FunctionDef, ast.ClassDef)
    body = ast.parse(file.read_text("utf-8")).body
    texts = {n.name: ast.get_docstring(n) or "" for n in body if isinstance(n, kinds)}
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(after, ast.Expr):
            texts[ast.unparse(node.targets[0])] = ast.literal_eval(after.value)
    text = " ".join(texts[name].partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0].replace("|", "\\|")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of a checkout into links between pages.

    Raises:
        PluginError: a link leads to what is not there, or has no page.
    """
    here = page.file.src_uri
    if here.startswith("reference/") or here == "results/index.md":
        return markdown
    folder = posixpath.dirname(source_of(here))

    def relinked(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        if not (ROOT / path).exists():
            raise PluginError(f"{source_of(here)}: {found[1]} is not there")
        target = page_of(path)
        while target and path.startswith(f"{PACKAGE}/") and not files.get_file_from_path(target):
            path = posixpath.dirname(path)  # data and private modules: the package they belong to
            target = page_of(path)
        if target is None or files.get_file_from_path(target) is None:
            raise PluginError(f"{source_of(here)}: {found[1]} has no page on the site")
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{found[2] or ''})"

    parts = CODE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(relinked, part) for i, part in enumerate(parts))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas in LaTeX into MathML, which browsers draw without a script."""

    def drawn(formula: re.Match[str]) -> str:
        return convert(
            html.unescape(formula[3]), display="inline" if formula[2] == "(" else "block"
        )

    return FORMULA.sub(drawn, content)
