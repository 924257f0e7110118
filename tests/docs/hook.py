"""Add pages and files from outside docs/ to the site; README is its first page.

In: the pages of docs/, and the files of the project that pages link to.  Out: the same files in the site, with
rewritten links.
Invariant: a link that works on GitHub works in the site; mkdocs refuses a link without a target.
Must not: import cdcd.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/README.md": "deploy.md",
    "deploy/spark/README.md": "spark-cluster.md",
}
"""Pages outside docs/, and their names in the site."""
_IN_PROJECT = {site: path for path, site in PAGES.items()}
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.M | re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `PAGES`, and each file outside docs/ that a page links to."""
    for path, site in PAGES.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / path)))
    pages = [file for file in files if file.is_documentation_page()]
    outside = {path for file in pages for path in _linked(file.content_string, _project_path(file.src_uri))}
    for path in sorted(outside):
        site = _site_path(path)
        if site not in files.src_uris and (ROOT / path).is_file():
            files.append(File.generated(config, site, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links rewritten for the site."""
    here = page.file.src_uri
    origin = posixpath.dirname(_project_path(here))

    def in_site(link: re.Match[str]) -> str:
        target = _site_path(posixpath.normpath(posixpath.join(origin, link[1])))
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{link[2] or ''})"

    return "".join(part if is_code else _LINK.sub(in_site, part) for part, is_code in _parts(markdown))


def _linked(markdown: str, page: str) -> Iterator[str]:
    """Yield the project's paths that the page links to."""
    for part, is_code in _parts(markdown):
        for link in () if is_code else _LINK.finditer(part):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(page), link[1]))


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of the text, and whether each is code."""
    start = 0
    for code in _CODE.finditer(markdown):
        yield markdown[start : code.start()], False
        yield code.group(), True
        start = code.end()
    yield markdown[start:], False


def _project_path(site: str) -> str:
    return _IN_PROJECT.get(site, f"docs/{site}")


def _site_path(path: str) -> str:
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}")
