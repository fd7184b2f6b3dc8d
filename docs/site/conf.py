"""The documentation as a site: ./dev docs runs Sphinx with these settings over the Markdown pages of the tree."""
import pathlib
import re
import shutil

from docutils import nodes
from sphinx import addnodes

project = "dp"
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "benchmarks/**.md"]
exclude_patterns = ["build*", "docs/site/headers.md"]
extensions = ["myst_parser"]
myst_heading_anchors = 6  # GitHub's anchors, which the pages use
smartquotes = False  # -- is the beginning of an option
html_theme = "furo"
html_title = "dp"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False

ROOT = pathlib.Path(__file__).parents[2]


def toctrees(index):
    """A toctree for each part of `index`, which begins with **Name**: the pages that it links, in their order."""
    folder = (ROOT / index).parent
    parts = {"": [index.removesuffix(".md")]}
    for line in (ROOT / index).read_text().splitlines():
        if named := re.match(r"\*\*\[?(\w+)", line):
            parts[named[1]] = []
        for link in re.findall(r"\]\(([^)#:]+\.md)\)", line):
            page = str((folder / link).resolve().relative_to(ROOT).with_suffix(""))
            if not any(page in pages for pages in parts.values()):
                list(parts.values())[-1].append(page)
    head = "\n```{toctree}\n:hidden:\n"
    return "".join(head + (f":caption: {name}\n" if name else "") + "".join(f"/{page}\n" for page in pages) + "```\n"
                   for name, pages in parts.items() if pages)


def list_pages(app, page, source):
    """The navigation follows the indexes. Records of benchmarks are found by links and by searching."""
    if page == "README":
        source[0] += toctrees("docs/README.md")
    elif page == "docs/decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n0*\n```\n"
    elif page.startswith("benchmarks/"):
        source[0] = "---\norphan: true\n---\n" + source[0]


def link_headers(app, doctree):
    """A link to a public header leads to its page of Doxygen."""
    up = "../" * app.env.docname.count("/")
    for node in list(doctree.findall(addnodes.download_reference)):
        if header := re.search(r"engine/include/dp/(\w+)\.h$", node["reftarget"]):
            page = f"{up}api/" + ("index" if header[1] == "dp" else header[1].replace("_", "__") + "_8h") + ".html"
            node.replace_self(nodes.reference("", "", *node.children, refuri=page))


def add_front_page(app, exception):
    if not exception:
        shutil.copy(pathlib.Path(app.outdir) / "README.html", pathlib.Path(app.outdir) / "index.html")


def setup(app):
    app.connect("source-read", list_pages)
    app.connect("doctree-read", link_headers)
    app.connect("build-finished", add_front_page)
