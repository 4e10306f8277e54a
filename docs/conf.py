"""The documentation's site, by Sphinx: `make docs-site` writes it to build/docs."""

import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.append(str(DOCS / "_extensions"))

project = "torchtally"
release = version = tomllib.loads((DOCS.parent / "trainer/pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "repository_links", "sphinx_copybutton"]
exclude_patterns = ["_extensions", "_static"]

myst_heading_anchors = 4  # GitHub's, so that a link works in both places
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = "torchtally"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "source_repository": "https://github.com/torchtally/torchtally/",
    "source_branch": "main",
    "source_directory": "docs/",
}
pygments_style = "default"
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_only_copy_prompt_lines = True
