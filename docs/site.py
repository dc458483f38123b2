"""A hook of MkDocs: the pages of the site are files of the repository, in its own layout."""

import re
from pathlib import Path

import griffe
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
# Runs write below docs/results/*/, so folders are named rather than searched.
PAGES = ("*.md", *(f"docs/{folder}*.md" for folder in ("", "*/", "*/*/")))
APART = "docs/internals"  # for those who change the code; they read it in the repository
PATTERNS = (
    *(*PAGES, "CITATION.cff"),
    *(f"docs/{folder}*.{kind}" for folder in ("", "*/", "*/*/") for kind in ("png", "svg")),
    *(f"docs/{folder}*.{kind}" for folder in ("*/", "*/*/") for kind in ("json", "csv")),
    *("docs/site.css", "docs/mermaid/*", "notebooks/*.ipynb"),
)
# @mermaid-js/tiny 11.17.2 of npm, MIT License. Without it, Material loads Mermaid from a CDN.
MERMAID = "docs/mermaid/mermaid.tiny.js"
# What the API pages show for a default that has no literal value
SHOWN = {"BY_DTYPE": "'dynamic' or None"}


def paths(*patterns: str) -> list:
    """Return the files that match, relative to the repository; none of an earlier site."""
    found = (path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern))
    names = (path.as_posix() for path in found if "_build" not in path.parts)
    return sorted(name for name in names if not name.startswith(APART))


def leaves(nav) -> list:
    """Return the paths that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in leaves(part)]


def titled(page: str) -> dict:
    """Return an entry of the navigation: the heading of a page with its folder, and its path."""
    heading = re.search(r"^# (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {f"{heading[1]} ({Path(page).parent.name})": page}


def on_config(config):
    """List the notebooks in the order of their numbers, and last the pages that nothing names."""
    rest = [titled(page) for page in paths(*PAGES) if page not in leaves(config.nav)]
    lists = {"Notebooks": paths("notebooks/*.ipynb"), "Appendix": rest}
    for section in config.nav:
        section.update((title, lists[title]) for title in section if title in lists)
    return config


@event_priority(100)  # before mkdocs-jupyter, which looks for notebooks among the files
def on_files(files, config):
    """Replace the files of docs/ by those of the repository; the theme's own stay."""
    theme = [file for file in files if Path(config.docs_dir) not in Path(file.abs_src_path).parents]
    own = [
        File(path, str(ROOT), config.site_dir, config.use_directory_urls)
        for path in paths(*PATTERNS)
    ]
    return Files(theme + own)


def on_page_content(html, page, config, files):
    """Keep a number on one line with its deviation and with the percent sign."""
    return re.sub(r"(?<=\d) (?=[±%])|(?<=±) (?=\d)", "&nbsp;", html)


def on_post_page(output, page, config):
    """Link a notebook to pages, as MkDocs links pages; load Mermaid from the site itself."""
    if page.file.src_path.endswith(".ipynb"):
        output = re.sub(r'(href="(?![a-z]+:)[^"#]+)\.(?:md|ipynb)(?=["#])', r"\1.html", output)
    if 'class="mermaid"' not in output:
        return output
    # a frame that scrolls, as a diagram is wider than a phone
    frame = r'<div class="diagram">\g<0></div>'
    output = re.sub(r'(?s)<pre class="mermaid">.*?</pre>', frame, output)
    script = f'<script src="{get_relative_url(MERMAID, page.file.url)}"></script>'
    return output.replace("</head>", f"{script}</head>", 1)


class Defaults(griffe.Extension):
    """In signatures of the API pages, the value of a constant stands in place of its name."""

    def on_package_loaded(self, *, pkg, **kwargs):
        for function in functions(pkg):
            known = (each for each in function.parameters if each.name != "others")
            function.parameters = griffe.Parameters(*known)  # without wrong arguments
            for parameter in function.parameters:
                name = str(parameter.default)
                if name.isupper() and name.isidentifier():
                    parameter.default = SHOWN.get(name) or str(function.module[name].value)


def functions(part):
    """Yield the functions of a package and of its classes, imported ones aside."""
    for member in part.members.values():
        if member.is_alias:
            continue
        if member.is_function:
            yield member
        elif member.is_module or member.is_class:
            yield from functions(member)
