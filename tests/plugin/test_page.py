"""docs/extend.md shows the code of the package that is tested here."""

import re
from pathlib import Path

PACKAGE = Path(__file__).with_name("package")
PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_is_in_a_file_of_the_package() -> None:
    files = {".py": "python", ".toml": "toml"}
    sources = [(files.get(path.suffix), path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.*")]
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 5
    assert [block for kind, block in blocks if not any(kind == of and block in text for of, text in sources)] == []
