"""Instruct models as they are released, imported and exported at once: their ends, names and settings, and the ids of a
conversation, are those of the source folder, judged by transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import chat_folders
from tests.helpers.ranks import run_ranks

FOLDERS = [kind for kind in chat_folders.FOLDERS if kind != "llama3"]
TURNS = [
    {"role": "user", "content": "Is 2 + 2 4?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "  Gr\u00fc\u00dfe, und 33?\n"},
]
FROM_OURS = ("tokenizer_class", "chat_template")


def _pass_through(folder: Path) -> None:
    """Imports and exports each of the folders."""
    from pretrain.checkpoint.hf.export import export
    from pretrain.checkpoint.hf.imports import import_hf, read_config
    from pretrain.evaluate.opening import build_empty, build_scorer
    from tests.helpers.ranks import meet_again

    for number, kind in enumerate(FOLDERS):
        if number:
            meet_again()
        run = folder / f"{kind}-run"
        config = read_config(folder / kind, run)
        import_hf(folder / kind, config, build_empty(config), lambda warning: None)
        checkpoint = run / "checkpoints" / "step-00000000"
        export(checkpoint, config, folder / f"{kind}-out", lambda: build_scorer(config, checkpoint))  # noqa: B023


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    for kind in FOLDERS:
        chat_folders.write(kind, folder / kind)
    run_ranks(1, _pass_through, folder)
    return folder


def _json(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((folder / f"{name}.json").read_text()))


@pytest.mark.parametrize("kind", FOLDERS)
def test_an_imported_chat_model_goes_out_as_it_came(folders: Path, kind: str) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    source, out = folders / kind, folders / f"{kind}-out"
    before, after = (AutoTokenizer.from_pretrained(path) for path in (source, out))
    for generation in (True, False):
        asked = {"add_generation_prompt": generation, "return_dict": True}
        turns = TURNS if generation else TURNS[:2]
        theirs = before.apply_chat_template(turns, **asked)["input_ids"]
        assert after.apply_chat_template(turns, **asked)["input_ids"] == theirs
    assert after.chat_template == before.chat_template
    for text in ("A word, 2 + 2.", " <|im_end|> </s>", ""):
        assert after(text)["input_ids"] == before(text)["input_ids"]
    assert len(after) == len(before)
    names = [f"{role}_token" for role in ("bos", "eos", "unk", "pad")]
    assert [getattr(after, name) for name in names] == [getattr(before, name) for name in names]
    assert sorted(after.all_special_tokens) == sorted(before.all_special_tokens)
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    was, now = (AutoConfig.from_pretrained(path) for path in (source, out))
    assert [getattr(now, name) for name in ids] == [getattr(was, name) for name in ids]
    assert GenerationConfig.from_pretrained(out).eos_token_id == GenerationConfig.from_pretrained(source).eos_token_id
    assert _json(out, "generation_config") == _json(source, "generation_config")
    assert _json(out, "special_tokens_map") == _json(source, "special_tokens_map")
    written, settings = _json(out, "tokenizer_config"), _json(source, "tokenizer_config")
    assert {key: written[key] for key in settings if key not in FROM_OURS} == {
        key: value for key, value in settings.items() if key not in FROM_OURS
    }
    assert _json(out, "tokenizer") == _json(source, "tokenizer")
