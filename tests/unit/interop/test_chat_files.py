"""Files of chat templates in a folder of others, as far as transformers would take them."""

import json
from pathlib import Path

import pytest

from pretrain.errors import ConfigError
from pretrain.interop.hf import chat


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / chat.FILE).write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja can't be read .*a text in UTF-8"):
        chat.read(tmp_path)
    (tmp_path / chat.FOLDER).mkdir()
    (tmp_path / chat.FOLDER / "rag.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"rag\.jinja can't be read"):
        chat.further(tmp_path)


@pytest.mark.parametrize("name", [["a"], {"a": 1}, None, 3])
def test_a_template_without_a_name_is_none(tmp_path: Path, name: object) -> None:
    entries = [{"name": name, "template": "x"}, {"name": "default", "template": "y"}, {"name": "rag", "template": "z"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))
    assert (chat.read(tmp_path), chat.further(tmp_path)) == ("y", {"rag": "z"})
