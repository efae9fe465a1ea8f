"""What the site adds to docs/: the pages at the root of the project, and a page of all commands and options."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
# Pages at the root of the project, under the names that they have on the site.
AT_THE_ROOT = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not stand in docs/."""
    for name, target in AT_THE_ROOT.items():
        text = _on_the_site((ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, target, content=text))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    citation = (ROOT / "CITATION.cff").read_bytes()
    files.append(File.generated(config, "CITATION.cff", content=citation))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ into links to the pages that stand for those files here."""

    def here(match: re.Match[str]) -> str:
        ups, name = match.groups()
        depth = page.file.src_uri.count("/")
        inside = ups.count("../") == depth + 1 and name in AT_THE_ROOT
        return f"]({'../' * depth}{AT_THE_ROOT[name]}" if inside else match.group()

    return re.sub(r"\]\(((?:\.\./)+)([A-Z]+\.md)", here, markdown)


def commands() -> str:
    """Every command with its options, as Markdown, from the commands themselves."""
    from jobs.cli import app

    text = app.generate_docs(output_format="markdown", recursive=True)
    # Its anchors lack the dashes that a heading begins with; the site's have them.
    text = text.replace("(#erag-install-completion)", "(#erag---install-completion)")
    return re.sub(r"\A# erag\b", "# Commands", text)


def _on_the_site(text: str) -> str:
    """A page of the root with links as they are on the site, where docs/ is the root."""
    for name, target in AT_THE_ROOT.items():
        text = re.sub(rf"\]\({re.escape(name)}(?=[)#])", f"]({target}", text)
    return text.replace("](docs/", "](")
