"""Links of the site, checked by the command of `make docs`, and what the pages and the files beside them name."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"(?<![\w/.-])(?:docs|configs|tests|pretrain|data_pipeline|launch)/[\w/.-]*\w(?:::\w+(?:\.\w+)*)?")
LINKED = re.compile(r"\]\(([^)#\s]+)")
_DEFINITION = ast.FunctionDef | ast.ClassDef
BUILD = re.compile(r"^docs: .*\n\t.*-m (mkdocs build .*)$", re.MULTILINE)


def _pages() -> dict[str, str]:
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def test_make_docs_fails_for_a_link_an_anchor_or_a_page_that_leads_nowhere(tmp_path: Path) -> None:
    found = BUILD.search((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found is not None
    ours = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings = {"site_name": "small", "nav": ["index.md"], **{key: ours[key] for key in ("strict", "validation")}}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Here\n\n[a](nowhere.md) [b](#no-such) [c](unlisted.md#here)\n")
    (tmp_path / "docs" / "unlisted.md").write_text("# There\n")
    command = [sys.executable, "-m", *shlex.split(found[1])]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "Aborted with 4 warnings" in done.stdout, done.stderr  # three links, and a page not listed


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [
        path.name
        for path in (ROOT / "docs").glob("*.md")
        if not re.search(rf" {re.escape(path.name)}$", text, re.MULTILINE)
    ] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_link_outside_the_site_leads_to_a_file(page: str) -> None:
    links = [link.partition("#")[0] for link in LINKED.findall(_pages()[page]) if "://" not in link]
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_links_between_pages_lead_to_files_on_a_git_host_too() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    missing = [
        f"{page}: {link}"
        for page, text in pages.items()
        for link in (found.partition("#")[0] for found in LINKED.findall(text))
        if link.endswith(".md") and "://" not in link and not (ROOT / "docs" / link).exists()
    ]
    assert missing == []


def _defines(path: Path, names: list[str]) -> bool:
    """Whether a module defines a function or class, or a method of one: `names` from the outermost."""
    node: ast.AST | None = ast.parse(path.read_text(encoding="utf-8"))
    for name in names:
        inside = ast.iter_child_nodes(node) if node is not None else ()
        node = next((child for child in inside if isinstance(child, _DEFINITION) and child.name == name), None)
    return node is not None


def test_every_file_function_and_test_that_a_page_names_is_there() -> None:
    missing = []
    for page, text in _pages().items():
        for name in NAMED.findall(text):
            path, _, defined = name.partition("::")
            there = (ROOT / path).exists() and (not defined or _defines(ROOT / path, defined.split(".")))
            missing += [] if there else [f"{page}: {name}"]
    assert missing == []
