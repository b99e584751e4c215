"""How the documentation is built: `make docs`."""

from __future__ import annotations

import html
import importlib
import json
import re
import sys
import textwrap
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.nodes import make_refnode
from torch.nn import Module

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import tg_lpe  # noqa: E402

project = "tg_lpe"
author = "The tg_lpe contributors"
project_copyright = author
version = release = tg_lpe.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
nitpicky = True
# Without a network there are no inventories of other projects to look their names up in.
nitpick_ignore_regex = [("py:.*", r"(?!tg_lpe\.).*")]

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "imported-members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

INVENTORIES = {
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "torch_geometric": "https://pytorch-geometric.readthedocs.io/en/latest/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
    "huggingface_hub": "https://huggingface.co/docs/huggingface_hub/main/en/",
}


def is_reachable(url: str) -> bool:
    """Whether an inventory can be read: without one there are no links to that project."""
    try:
        with urllib.request.urlopen(f"{url}objects.inv", timeout=3) as answer:
            return answer.read(16).startswith(b"# Sphinx")
    except OSError:
        return False


with ThreadPoolExecutor() as pool:
    there = list(pool.map(is_reachable, INVENTORIES.values()))
intersphinx_mapping = {
    name: (url, None)
    for (name, url), found in zip(INVENTORIES.items(), there, strict=True)
    if found
}

smartquotes_action = "D"  # dashes; quotes in tables are code
pygments_dark_style = "github-dark"
highlight_language = "none"  # blocks without a language are commands
html_theme = "furo"
html_title = "tg_lpe"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"


class NotebookParser(MystParser):
    """A notebook as a page, with the outputs that it holds."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the Markdown that the notebook's cells make."""
        parts = []
        for cell in json.loads(inputstring)["cells"]:
            source = "".join(cell["source"])
            parts.append(
                f"````python\n{source}\n````" if cell["cell_type"] == "code" else source
            )
            parts += map(output_markdown, cell.get("outputs", []))
        super().parse("\n\n".join(parts), document)


def output_markdown(output: dict[str, Any]) -> str:
    """A cell's output: a picture, HTML or text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png'].split())})"
    if "text/html" in data:
        return f"````{{raw}} html\n{''.join(data['text/html'])}\n````"
    text = "".join(data["text/plain"]).rstrip()
    return f"````{{code-block}} text\n:class: output\n\n{text}\n````"


def describe_page(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """What search engines show of a page: its first paragraph."""
    paragraph = next(iter(doctree.findall(nodes.paragraph)), None) if doctree else None
    if paragraph is not None:
        text = html.escape(textwrap.shorten(paragraph.astext(), 200, placeholder=" ..."))
        context["metatags"] += f'<meta name="description" content="{text}" />'


def visit_math(translator: Any, node: nodes.math) -> None:
    """Mathematics inside a line, as MathML, which browsers draw without scripts."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    """Mathematics on its own lines; with several of them or ``&``, an ``align`` environment."""
    text = node.astext().strip()
    if (r"\\" in text or "&" in text) and r"\begin" not in text:
        text = r"\begin{align*}" + text + r"\end{align*}"
    translator.body.append(f'<div class="math">{convert(text, display="block")}</div>')
    raise nodes.SkipNode


def resolve_reference(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """A name of this package by any path that imports it, or that its page's module imports."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    if not target.startswith("tg_lpe."):
        target = f"{node.get('py:module') or ''}.{target}"
        if not target.startswith("tg_lpe.") or find_object(target) is None:
            return None
    found = find_object(target)
    for name, entry in env.get_domain("py").objects.items():  # type: ignore[attr-defined]
        if (
            found is not None
            and name.rpartition(".")[2] == target.rpartition(".")[2]
            and find_object(name) is found
        ):
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, content, name
            )
    return (
        content if is_in_signature(node) else None
    )  # a type that has no page is named, without a link


def check_signature(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str, None] | None:
    """Warn of a class of this package whose page would not show its arguments."""
    if what != "class" or not getattr(obj, "__module__", "").startswith("tg_lpe"):
        return None
    if obj.__init__ in (Module.__init__, object.__init__):
        return "()", None
    if signature is not None and "*args" in signature:
        logging.getLogger(__name__).warning("%s shows %s for its arguments", name, signature)
    if signature is not None and "<factory>" in signature:  # which is no Python
        return signature.replace("<factory>", "..."), None
    return None


def separate_attributes(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """An entry ``a, b: text`` under ``Attributes:``, which Napoleon misreads, once for each."""
    if lines and lines[0].startswith("Alias for field number"):  # of a named tuple: no news
        lines.clear()
    if "Attributes:" not in lines:
        return
    begin = lines.index("Attributes:") + 1
    end = next((i for i in range(begin, len(lines)) if lines[i][:1].strip()), len(lines))
    separate: list[str] = []
    for entry in re.findall(
        r"^    \S.*\n(?:(?:     .*)?\n)*", "\n".join([*lines[begin:end], ""]), re.M
    ):
        names, colon, text = entry.partition(": ")
        listed = (
            names.split(", ") if colon and re.fullmatch(r" *\w+(, \w+)+", names) else [names]
        )
        for own in listed:
            separate += f"    {own.strip()}{colon}{text}".rstrip("\n").split("\n")
    lines[begin:end] = [*separate, ""]


def join_sentence(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """A sentence with a colon whose beginning Napoleon took for the type of an attribute."""
    types = [line for line in lines if line.startswith(":type: ")]
    if what in ("attribute", "data", "property") and types:
        at = lines.index(types[0])
        lines[:] = [f"{types[0].removeprefix(':type: ')}: {lines[0]}", *lines[1:at]]


def is_in_signature(node: nodes.Node) -> bool:
    """Whether a reference is part of a signature."""
    return node.parent is not None and (
        isinstance(node.parent, desc_signature) or is_in_signature(node.parent)
    )


def find_object(path: str) -> Any:
    """What a dotted path imports; ``None`` if there is nothing."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for name in parts[split:]:
            found = getattr(found, name, None)
        return getattr(
            found, "__func__", found
        )  # a class method is another object at each access
    return None


def check_public_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of a public class, function or constant without a place in the reference."""
    names = env.get_domain("py").objects  # type: ignore[attr-defined]
    documented = {id(find_object(name)) for name in names}
    for name in (ROOT / "tests" / "fixtures" / "public_names.txt").read_text().split():
        found = find_object(name)
        if not isinstance(found, ModuleType) and id(found) not in documented:
            logging.getLogger(__name__).warning("docs/api does not document %s", name)


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    app.connect("html-page-context", describe_page)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("missing-reference", resolve_reference)
    app.connect("env-check-consistency", check_public_names)
    app.connect("autodoc-process-signature", check_signature)
    app.connect(
        "autodoc-process-docstring", separate_attributes, priority=400
    )  # before Napoleon
    app.connect("autodoc-process-docstring", join_sentence, priority=600)  # after it
