"""What the site has beside the pages of docs/: references made of the code. Called by mkdocs (mkdocs.yml)."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs.make.commands import commands_page
from docs.make.keys import build_page, keys_page
from docs.make.tasks import tasks_page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, which are in no folder."""
    pages = {"keys": keys_page(), "data-keys": build_page(), "commands": commands_page(), "tasks": tasks_page()}
    for name, content in pages.items():
        files.append(File.generated(config, f"{name}.md", content=content))
    return files
