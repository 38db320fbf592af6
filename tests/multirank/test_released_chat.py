"""Released decoders, imported and exported at once: their ends, names and settings, and the ids of a conversation, are
those of the source folder, judged by transformers. The imported weights are trained for a step, too."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.helpers import chat_folders
from tests.helpers.breadth import asked, only
from tests.helpers.more_chat_folders import MORE
from tests.helpers.ranks import run_ranks

FOLDERS = [*chat_folders.ASKED, *MORE]
QUICK = ("llama3", "qwen2.5", "deepseek-v2-lite")
GGUF = {
    "qwen2.5": ("qwen2", "<|endoftext|>", "<|im_end|>", False),
    "smollm2": ("smollm", "<|im_start|>", "<|im_end|>", False),
    "llama3": ("llama-bpe", "<|begin_of_text|>", "<|eot_id|>", True),
}
"""folder -> llama.cpp's name of how a text is cut, its begin, its end, and whether texts begin with it"""
TURNS = [
    {"role": "user", "content": "Is 2 + 2 4?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "  Gr\u00fc\u00dfe, und 33?\n"},
]
FROM_OURS = ("tokenizer_class", "chat_template")


def _continued(checkpoint: Path, config: Any) -> list[float]:
    """The losses of two steps from an imported checkpoint, on the same rows."""
    from pretrain.checkpoint import store
    from pretrain.data.synthetic import SyntheticStream
    from tests.helpers.tiny import build_engine

    engine = build_engine(config)
    weights = {name: part for name, part in engine.state().items() if name.startswith("model/")}
    store.load(checkpoint, weights)
    engine.state_loaded(0)
    rows = SyntheticStream(config).batch(0, config.batch.sequences, 0, 1)
    results = [engine.train_step(rows, 1e-3, step) for step in (1, 2)]
    return [result.loss_sum / result.token_count for result in results]


def _pass_through(folder: Path, kinds: Sequence[str]) -> None:
    """Imports and exports each of the folders, and trains from it (losses.json). Texts that tokenizers are compared on
    are fewer than usual."""
    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.gguf.export import export_gguf
    from pretrain.interop.hf import hostile
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.imports import import_hf, read_config
    from tests.helpers.ranks import meet_again

    hostile._PIECES = 50
    losses: dict[str, list[float]] = {}
    for number, kind in enumerate(kinds):
        if number:
            meet_again()
        run = folder / f"{kind}-run"
        config = read_config(folder / kind, run)
        import_hf(folder / kind, config, build_empty(config), lambda warning: None)
        checkpoint = run / "checkpoints" / "step-00000000"
        scorer = partial(build_scorer, config, checkpoint)
        export(checkpoint, config, folder / f"{kind}-out", scorer)
        if kind in GGUF:
            export_gguf(checkpoint, config, folder / f"{kind}.gguf", scorer, dtype="fp32")
        meet_again()
        losses[kind] = _continued(checkpoint, config)
    (folder / "losses.json").write_text(json.dumps(losses))


@pytest.fixture(scope="module")
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, kinds = tmp_path_factory.mktemp("released"), sorted(asked(request, "kind"))
    for kind in kinds:
        chat_folders.write(kind, folder / kind)
    run_ranks(1, _pass_through, folder, kinds)
    return folder


def _json(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((folder / f"{name}.json").read_text()))


@pytest.mark.parametrize("kind", only(QUICK, FOLDERS))
def test_an_imported_chat_model_goes_out_as_it_came(folders: Path, kind: str) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    source, out = folders / kind, folders / f"{kind}-out"
    before, after = (AutoTokenizer.from_pretrained(path) for path in (source, out))
    for generation in (True, False) if before.chat_template else ():
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


@pytest.mark.parametrize("kind", only(QUICK, FOLDERS))
def test_an_imported_model_is_trained_further(folders: Path, kind: str) -> None:
    before, after = _json(folders, "losses")[kind]
    assert after < before, "of the same rows, after a step"


@pytest.mark.parametrize("kind", only([kind for kind in QUICK if kind in GGUF], filter(GGUF.__contains__, FOLDERS)))
def test_a_gguf_file_of_a_chat_model_has_its_rule_ends_and_template(folders: Path, kind: str) -> None:
    from transformers import AutoTokenizer

    rule, begin, end, begins = GGUF[kind]
    theirs = AutoTokenizer.from_pretrained(folders / kind)
    fields = {name: field.contents() for name, field in gguf.GGUFReader(folders / f"{kind}.gguf").fields.items()}
    found = {name.removeprefix("tokenizer."): value for name, value in fields.items() if name.startswith("tokenizer.")}
    assert found["ggml.pre"] == rule
    ids = [found[f"ggml.{name}_token_id"] for name in ("bos", "eos", "eot")]
    assert theirs.convert_ids_to_tokens(ids) == [begin, end, end]
    assert (found["ggml.add_bos_token"], found["ggml.add_eos_token"]) == (begins, False)
    assert found["chat_template"] == theirs.chat_template


LLAMA_CPP = sys.executable if find_spec("xllamacpp") else os.environ.get("LLAMA_CPP_PYTHON")
"""A Python with the package xllamacpp."""
_ASK = """
import json, sys, urllib.request, xllamacpp as x
params = x.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.use_jinja = sys.argv[1], 256, 1, False, True
server = x.Server(params)
def post(path, **body):
    asked = urllib.request.Request(server.listening_address + path, json.dumps(body).encode())
    asked.add_header("Content-Type", "application/json")
    return json.load(urllib.request.urlopen(asked, timeout=60))
turns, texts, ids = json.loads(sys.argv[2])
prompt = post("/apply-template", messages=turns)["prompt"]
found = [post("/tokenize", content=text, add_special=True, parse_special=True)["tokens"] for text in (prompt, *texts)]
def stops(index):
    asked = {"prompt": "A", "max_tokens": 2, "temperature": 0.0, "logit_bias": [[index, 1000.0]]}
    return server.handle_completions(asked)["choices"][0]["finish_reason"] == "stop"
print("FOUND", json.dumps([found, [index for index in ids if stops(index)]]))
"""


@pytest.mark.skipif(LLAMA_CPP is None, reason="no xllamacpp here, and LLAMA_CPP_PYTHON names no Python that has it")
@pytest.mark.parametrize("kind", only([kind for kind in QUICK if kind in GGUF], filter(GGUF.__contains__, FOLDERS)))
def test_llama_cpp_reads_turns_and_ends_as_the_source_s_own_tokenizer(folders: Path, kind: str) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    theirs = AutoTokenizer.from_pretrained(folders / kind)
    texts = ["A word, 1234567 Don't\n\n  you?", "caf\u00e9 \u4e2d\u6587 x_y=1.5; <|im_end|>", ""]
    ends = GenerationConfig.from_pretrained(folders / kind).eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    plain = [index for index in theirs.convert_tokens_to_ids(["a", "b", "!"]) if index is not None]
    asked = json.dumps([TURNS, texts, [*ends, *plain]])
    words = [str(LLAMA_CPP), "-c", _ASK, str(folders / f"{kind}.gguf"), asked]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    answers = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert answers, done.stdout + done.stderr
    (prompt, *found), stops = json.loads(answers[0].removeprefix("FOUND "))
    assert prompt == theirs.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert found == [theirs(text)["input_ids"] for text in texts]
    assert stops == ends, "generation continues after its end token"
