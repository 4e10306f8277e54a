"""Links from Markdown to files of the repository work on GitHub and in the site.

MyST resolves links between the pages under docs/. A relative link to any other file becomes a link to GitHub. The build
fails if the file does not exist or, for a Markdown file, has no such heading. Links to the repository on GitHub are
checked in the same way, and so are the links of Markdown files outside docs/.
"""

import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from myst_parser.slugs import github_slugify, unique_slug
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GITHUB = "https://github.com/torchtally/torchtally"

_LINK = re.compile(r"(?<!!)(\[(?:[^\]\[]|\[[^\]]*\])*\])\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_ON_GITHUB = re.compile(re.escape(GITHUB) + r"/(?:blob|tree)/main/([\w./-]+)(#[\w-]+)?")
_log = logging.getLogger(__name__)


def anchors(markdown: str) -> set[str]:
    """GitHub's anchors of the headings."""
    found: list[str] = []
    tokens = MarkdownIt().parse(markdown)
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            title = "".join(each.content for each in inline.children or [] if each.type in ("text", "code_inline"))
            found.append(unique_slug(github_slugify(title), found))
    return set(found)


def problem(target: Path, anchor: str) -> str | None:
    """Why a link to `target`, with `anchor` or an empty string, is broken."""
    if not target.is_relative_to(ROOT):
        return f"{target} is outside of the repository"
    if not target.exists():
        return f"there is no {target.relative_to(ROOT)}"
    if anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
        return f"{target.relative_to(ROOT)} has no heading #{anchor}"
    return None


def rewrite(markdown: str, file: Path, page: Path) -> tuple[str, list[str]]:
    """`markdown`, which stands in `file`, as it is to stand in `page` of the site; and its broken links."""
    problems: list[str] = []

    def check(shown: str, target: Path, fragment: str) -> None:
        if found := problem(target, fragment.removeprefix("#")):
            problems.append(f"{file.relative_to(ROOT)}: the link {shown} is broken: {found}")

    def link(match: re.Match[str]) -> str:
        text, path, fragment = match[1], match[2], match[3] or ""
        target = Path(os.path.normpath(file.parent / path))
        check(path + fragment, target, fragment)
        if target.is_relative_to(DOCS) and target.suffix == ".md":
            return f"{text}({os.path.relpath(target, page.parent)}{fragment})"
        kind = "tree" if target.is_dir() else "blob"
        return f"{text}({GITHUB}/{kind}/main/{os.path.relpath(target, ROOT)}{fragment})"

    for match in _ON_GITHUB.finditer(markdown):
        check(match[0], ROOT / match[1], match[2] or "")
    return _LINK.sub(link, markdown), problems


def _rewrite(app: Sphinx, file: Path, source: list[str]) -> None:
    source[0], problems = rewrite(source[0], file, Path(app.env.doc2path(app.env.docname)))
    for each in problems:
        _log.warning(each)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    _rewrite(app, Path(app.env.doc2path(docname)), source)


def _included(app: Sphinx, path: Path, _parent: str, source: list[str]) -> None:
    _rewrite(app, Path(os.path.normpath(DOCS / path)), source)


def _check_others(app: Sphinx) -> None:
    """The Markdown files that are no pages."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        file = ROOT / name
        if file.exists() and not file.is_relative_to(DOCS):
            for each in rewrite(file.read_text(), file, file)[1]:
                _log.warning(each)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", _check_others)
    app.connect("source-read", _read)
    app.connect("include-read", _included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
