"""A hook of MkDocs: the pages of the site are files of the repository, in its own layout."""

from pathlib import Path

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
# Runs write below docs/results/*/, so folders are named rather than searched.
PATTERNS = (
    *("*.md", "CITATION.cff"),
    *(f"docs/{folder}*.{kind}" for folder in ("", "*/", "*/*/") for kind in ("md", "png", "svg")),
    *(f"docs/{folder}*.{kind}" for folder in ("*/", "*/*/") for kind in ("json", "csv")),
    *("docs/site.css", "docs/mermaid/*", "notebooks/*.ipynb"),
)
# @mermaid-js/tiny 11.17.2 of npm, MIT License. Without it, Material loads Mermaid from a CDN.
MERMAID = "docs/mermaid/mermaid.tiny.js"


def paths(*patterns: str) -> list:
    """Return the files that match, relative to the repository; none of an earlier site."""
    found = (path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern))
    return sorted(path.as_posix() for path in found if "_build" not in path.parts)


def on_config(config):
    """List the notebooks in the navigation, in the order of their numbers."""
    for section in config.nav:
        if section == {"Notebooks": "notebooks"}:
            section["Notebooks"] = paths("notebooks/*.ipynb")
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


def on_post_page(output, page, config):
    """Load Mermaid on a page with a diagram, from the site itself."""
    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{get_relative_url(MERMAID, page.file.url)}"></script>'
    return output.replace("</head>", f"{script}</head>", 1)
