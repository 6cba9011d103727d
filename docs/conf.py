"""The site: `make docs` builds it strictly, from these pages and those that pages.py makes from the software."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import latex2mathml.converter  # noqa: E402
from docutils import nodes  # noqa: E402

import hashlens  # noqa: E402
from docs import pages  # noqa: E402

project, author = "hashlens", "the hashlens developers"
copyright = "the hashlens developers, MIT licence"
version = release = hashlens.__version__
extensions = ["myst_parser"]
exclude_patterns = ["reproduction/tables"]  # they are in REPRODUCTION.md
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "attrs_block"]
myst_heading_anchors = 4
highlight_language = "bash"  # commands, in blocks that name no language
smartquotes = False  # two dashes begin an option
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # names of other packages in signatures
suppress_warnings = ["myst.header"]  # generated tables may start with a third level
html_theme = "furo"
html_title = f"hashlens {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_show_sphinx = False
html_show_search_summary = False  # a page opened from disk may not fetch others
html_copy_source = True  # llms.txt links to the text of each page
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c8f", "color-brand-content": "#0b5c8f"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f5", "color-brand-content": "#7cc4f5"},
}
pygments_style, pygments_dark_style = "tango", "monokai"

ELSEWHERE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def links_within_the_site(app, docname, source):
    """Links that GitHub shows as files: pages of the repository become pages of the site, folders become names."""
    page = HERE / docname

    def link(match):
        text, target = match[1], match[2]
        path, _, part = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        file = (page.parent / path).resolve()
        at_top = file.parent == HERE.parent and ELSEWHERE.get(file.name)
        if at_top:
            up = "../" * docname.count("/")
            return f"[{text}]({up}{at_top}{'#' + part if part else ''})"
        if file.is_dir() or not file.is_relative_to(HERE):  # tests/test_docs.py sees that it exists
            return f"{text} (`{file.relative_to(HERE.parent)}`)" if text.strip("`") != file.name else text
        return match[0]

    source[0] = re.sub(r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)", link, source[0])


def of_the_top(app, relative_path, parent_docname, content):
    """Links of an included file of the repository's top, which are relative to it."""
    content[0] = re.sub(r"\]\(docs/", "](", content[0])
    source = [content[0]]
    links_within_the_site(app, parent_docname, source)
    content[0] = re.sub(r"\[([^\]\n]+)\]\((?:src|tests|benchmarks|deploy)/[^)]*\)", r"\1", source[0])


def write_llms(app, exception):
    """llms.txt: what each page is about and where its plain text is."""
    if exception or app.builder.name != "html":
        return
    lines = ["# hashlens", "", f"> {hashlens.__doc__.splitlines()[0].partition(': ')[2]}", ""]
    for docname in sorted(app.env.found_docs, key=lambda name: (name != "index", name)):
        title = app.env.titles[docname].astext() if docname in app.env.titles else docname
        lines.append(f"- [{title}](_sources/{docname}.md.txt)")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def visit_math(self, node):
    """Formulas as MathML, which browsers draw without a script."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    self.body.append(latex2mathml.converter.convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app):
    pages.write(HERE / "generated")
    app.connect("source-read", links_within_the_site)
    app.connect("include-read", of_the_top)
    app.connect("build-finished", write_llms)
    app.add_node(nodes.math, override=True, html=(visit_math, None))
    app.add_node(nodes.math_block, override=True, html=(visit_math, None))
    return {"parallel_read_safe": True}
