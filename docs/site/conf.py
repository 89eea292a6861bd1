"""The documentation as a site, by Sphinx: `make docs`. Every warning is an error.

The pages are README.md, CHANGELOG.md and docs/*.md as they stand. The source directory of a build is laid out here: the
pages, and a page of the reference for each public package. A link from a page to a file of the repository leads to that file, shown
as a page of the site; a link that leads nowhere is a warning.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import os
import re
import shutil
import textwrap
from html import escape
from importlib import import_module
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.util import logging

import spark_jms
from spark_jms import errors

log = logging.getLogger(__name__)

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
PAGES = {path.stem: path for path in [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *DOCS.glob("*.md")]}

# Module -> its title in the navigation. What they export is public (tests/unit/project/test_public_imports.py).
REFERENCE = {
    "spark_jms": "spark_jms: apply, connect, browse",
    "spark_jms.client": "spark_jms.client: the client",
    "spark_jms.aio": "spark_jms.aio: the client for asyncio",
    "spark_jms.admin": "spark_jms.admin: administration",
    "spark_jms.errors": "spark_jms.errors",
    "spark_jms.setup": "spark_jms.setup: Java, Delta's jars, a Spark session",
    "spark_jms.spark.fresh": "spark_jms.spark.fresh: views that are current",
    "spark_jms.metrics": "spark_jms.metrics: a collector for Prometheus",
    "spark_jms.testing": "spark_jms.testing: for your own tests",
}

# The navigation: a page that is missing here is a warning.
NAVIGATION = {
    "First message": ["Three examples <README>", "MESSAGES", "CLIENT", "TRANSACTIONS", "GLOSSARY"],
    "From another queue": ["COMING-FROM"],
    "In Spark": ["SPARK", "OPTIONS", "CHANGES", "CONNECT", "PIPELINES", "SCALING"],
    "In production": [
        *("PROMISES", "OPERATING", "MONITORING", "LIMITS", "ADMIN", "DISTRIBUTED", "DATA-STORES", "REPLICATED-STORE"),
        *("REPLICATED-STORE-REFERENCE", "WEBHDFS", "BENCHMARKS", "UPGRADE", "CHANGELOG"),
    ],
    "Reference": [f"api/{module}" for module in REFERENCE],
    "For maintainers": ["CONTRIBUTING", "ARCHITECTURE", "ROOMS", "STYLE", "FEATURES", "REPLICATED-STORE-DESIGN"],
}

project, author, copyright = "spark-jms", "The authors of spark-jms", "the authors of spark-jms"
release = version = spark_jms.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"spark-jms {release}"
# Draws the diagrams in the reader's browser. `make docs` brings it where npm is; without it a page shows a diagram as text.
MERMAID = Path(os.environ.get("JMSQ_CACHE", PROJECT / ".cache"), "mermaid.min.js")
html_static_path = ["static", *([str(MERMAID)] if MERMAID.exists() else [])]
html_js_files = [MERMAID.name] if MERMAID.exists() else []
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]
myst_url_schemes = {"http": None, "https": None, "mailto": None, "source": "source/{{path}}.html"}
copybutton_exclude = ".linenos, .gp, .go"

default_role = "code"  # docstrings write code between single backticks
autodoc_default_options = {"members": True, "member-order": "groupwise"}
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
add_module_names = False
python_use_unqualified_type_names = True


# -- the source directory ---------------------------------------------------------------------------------------------
shown: set[Path] = set()  # files and folders of the repository that pages link to
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\[[^\]]*\]\()(?![a-z]+:|#)([^)#\s]+)((?:#[^)\s]*)?\))")


def lay_out(app: Sphinx) -> None:
    for name, path in PAGES.items():
        text = with_links(path) + (navigation() if name == "index" else "")
        Path(app.srcdir, path.name).write_text(text, encoding="utf-8")
    shutil.copytree(DOCS / "images", Path(app.srcdir, "images"), dirs_exist_ok=True)
    reference = Path(app.srcdir, "api")
    reference.mkdir(exist_ok=True)
    for module, title in REFERENCE.items():
        bases = "   :show-inheritance:\n" if module == "spark_jms.errors" else ""
        text = f"# {title}\n\n```{{eval-rst}}\n.. automodule:: {module}\n{bases}```\n"
        (reference / f"{module}.md").write_text(text, encoding="utf-8")


def navigation() -> str:
    lists = (
        ["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"] for title, pages in NAVIGATION.items()
    )
    return "".join("\n" + "\n".join(lines) + "\n" for lines in lists)


def with_links(page: Path) -> str:
    """Links are paths beside the page. Those to pages become names of the source directory, and the others `source:…`."""

    def link(found: re.Match[str]) -> str:
        before, path, after = found.groups()
        target = Path(os.path.normpath(page.parent / path))
        if target in PAGES.values():
            return f"{before}{target.name}{after}"
        if target.is_relative_to(DOCS / "images"):
            return f"{before}{target.relative_to(DOCS)}{after}"
        if not target.exists():
            log.warning("%s: %s leads nowhere", page.name, path)
        shown.add(target)
        return f"{before}source:{target.relative_to(PROJECT)}{after}"

    text = page.read_text(encoding="utf-8")
    ends = [0, *(end for found in _FENCE.finditer(text) for end in found.span()), len(text)]
    parts = [text[begin:end] for begin, end in itertools.pairwise(ends)]
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def show_files(app: Sphinx, failed: Exception | None) -> None:
    """A plain page for each of them, with an anchor for each line (#L-12). A folder's page says what its files are."""
    for path in sorted(shown if failed is None else ()):
        page = Path(app.outdir, "source", f"{path.relative_to(PROJECT)}.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        front = os.path.relpath(Path(app.outdir, "index.html"), page.parent)
        title = escape(str(path.relative_to(PROJECT)))
        body = files_in(path) if path.is_dir() else highlighted(path)
        page.write_text(SOURCE_PAGE.format(title=title, front=front, body=body, styles=STYLES), encoding="utf-8")


def files_in(folder: Path) -> str:
    rows = ""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name.startswith((".", "__pycache__")) or (path.is_dir() and path not in shown):
            continue
        name = f'<a href="{folder.name}/{path.name}.html">{path.name}</a>' if path in shown else path.name
        rows += f"<dt><code>{name}</code></dt><dd>{escape(said_first(path))}</dd>"
    return f"<dl>{rows}</dl>"


def said_first(path: Path) -> str:
    """By the docstring of a module or of a folder's package."""
    module = path / "__init__.py" if path.is_dir() else path
    if module.suffix != ".py" or not module.exists():
        return ""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def highlighted(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(path.name, text)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(text, lexer, FORMATTER)


FORMATTER = HtmlFormatter(lineanchors="L", linenos="inline", cssclass="source")
STYLES = FORMATTER.get_style_defs(".source")
SOURCE_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – spark-jms</title>
<style>
body {{ font-family: sans-serif; line-height: 1.5; margin: 1rem auto; max-width: 70rem; padding: 0 1rem }}
pre {{ font-size: 0.85rem; line-height: 1.35; overflow-x: auto }}
{styles}
</style>
</head>
<body><p><a href="{front}">spark-jms</a></p><h1><code>{title}</code></h1>{body}</body>
</html>
"""


class Mermaid(Directive):
    has_content = True

    def run(self) -> list[nodes.Node]:
        text = escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="mermaid">{text}</pre>', format="html")]


# -- the reference ----------------------------------------------------------------------------------------------------
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
_SPECIAL = re.compile(r"(?<!`)([*_|\\])(?!`)")


def is_code(paragraph: str) -> bool:
    """Lines that Python understands; a sentence is none of them."""
    try:
        ast.parse(textwrap.dedent(paragraph))
    except SyntaxError:
        return False
    return True


def as_text(line: str) -> str:
    """Docstrings are plain text with code between backticks, not reStructuredText. The names of our errors become links."""
    parts = line.split("`")
    parts[::2] = [_ERROR.sub(error_link, _SPECIAL.sub(r"\\\1", part)) for part in parts[::2]]
    return "".join(f"``{part}``" if odd % 2 else part for odd, part in enumerate(parts))


def error_link(found: re.Match[str]) -> str:
    name = found[0]
    return f":exc:`~spark_jms.errors.{name}`" if hasattr(errors, name) else name


def format_docstring(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Without the line that names features, and what dataclasses have without a docstring of their own."""
    formatted: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        if not paragraph.strip() or paragraph.startswith(("Features: ", f"{name.rsplit('.')[-1]}(")):
            continue
        if is_code(paragraph):
            formatted += ["::", "", *(f"    {line}" for line in paragraph.splitlines()), ""]
        else:
            formatted += [as_text(" ".join(line.strip() for line in paragraph.splitlines())), ""]
    lines[:] = formatted + (fields_of(found) if what == "class" and dataclasses.is_dataclass(found) else [])


def fields_of(found: type) -> list[str]:
    """The fields of a dataclass, with what the comments behind them say of units and special values."""
    said = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(found), re.MULTILINE))
    names = (field.name for field in dataclasses.fields(found) if field.name[0] != "_")
    return [f"* ``{name}``: {as_text(said[name])}" for name in names if name in said]


def signature(
    app: Sphinx, what: str, name: str, found: object, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None] | None:
    """A class shows its arguments. One that a function makes for its users shows none: they do not call it."""
    if (
        what == "exception"
        or signature == "(*args, **kwargs)"
        or (what == "class" and not dataclasses.is_dataclass(found) and "Made by" in (found.__doc__ or ""))
    ):
        return "", None
    return None


def setup(app: Sphinx) -> None:
    app.add_directive("mermaid", Mermaid)
    for module in REFERENCE:
        import_module(module)
    app.connect("builder-inited", lay_out)
    app.connect("build-finished", show_files)
    app.connect("autodoc-process-docstring", format_docstring)
    app.connect("autodoc-process-signature", signature)
