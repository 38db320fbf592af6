"""Hooks of mkdocs (mkdocs.yml): pages generated from the code, line breaks of code in tables, and drawings."""

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.make.commands import commands_page
from docs.make.keys import build_page, keys_page
from docs.make.tasks import tasks_page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Puts the generated pages in place of those that say, where only the files are read, what prints the same."""
    pages = {"keys": keys_page(), "data-keys": build_page(), "commands": commands_page(), "tasks": tasks_page()}
    for name, content in pages.items():
        if (short := files.get_file_from_path(f"{name}.md")) is not None:
            files.remove(short)
        files.append(File.generated(config, f"{name}.md", content=content))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lets keys and paths in table cells break after a dot, a slash or an underscore (docs/site.css: nowhere else), and
    marks the pages of keys, whose tables a phone shows in one column, and the blocks that are drawings, whose lines
    must not break."""
    if page.file.src_uri in _OF_KEYS:
        html = f'<div class="keys">{html}</div>'
    html = _BLOCK.sub(
        lambda block: block[0].replace("<pre", '<pre class="drawing"', 1) if "+--" in block[0] else block[0], html
    )
    return _CELL.sub(lambda cell: _CODE.sub(lambda code: _SEPARATOR.sub(r"\1<wbr>", code[0]), cell[0]), html)


_OF_KEYS = ("keys.md", "data-keys.md")
_BLOCK = re.compile(r"<pre\b.*?</pre>", re.DOTALL)
_CELL = re.compile(r"<(t[dh])\b.*?</\1>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]+")
_SEPARATOR = re.compile(r"([._/]+)(?=\w{3})")
