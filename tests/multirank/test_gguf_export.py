"""GGUF exports: what a reader of the file finds, and llama.cpp's greedy text where a package of it is installed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pretrain.errors import ConfigError
from tests.helpers.breadth import slow
from tests.helpers.families import family_config
from tests.helpers.hf import randomise, save, tokenizer_for
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

VOCABULARY = 300  # more than the tokenizer has
TYPES = {"fp32": "F32", "fp16": "F16", "q8_0": "Q8_0"}
PROMPT = "abcd efgh"
"""of the tokenizer's own text"""


def _config(family: str) -> Any:
    plain = {"attention": {"pattern": ["dense"]}, "positions": {"name": "rotary", "base": 5e4}}
    if family == "qwen3":
        plain["head_dim"] = 128  # transformers' reader of GGUF files takes no other for it
    return family_config(family, model={"vocabulary": VOCABULARY, "hidden": 64, "ffn": 96, **plain})


def _exports(family: str, tokenizer: Path, directory: Path) -> Any:
    """Agreement by type, and our ids of a prompt with a greedy continuation."""
    from data_pipeline.tokenizers.load import load_tokenizer
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.gguf.export import export_gguf
    from tests.helpers.decoding import greedy

    config = _config(family)
    engine = build_engine(config)
    randomise(engine)
    checkpoint = save(engine, config, tokenizer, directory)

    def scorer() -> Any:
        return build_scorer(config, checkpoint)

    found = {
        dtype: str(export_gguf(checkpoint, config, directory / f"{dtype}.gguf", scorer, dtype=dtype)) for dtype in TYPES
    }
    ids = load_tokenizer(tokenizer).encode(PROMPT)
    return found, ids, greedy(scorer(), [ids], 12)[0]


@pytest.fixture(scope="module", params=[slow("llama"), "qwen2", slow("qwen3")])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """(family, folder of the files, what `_exports` returns)."""
    directory = tmp_path_factory.mktemp(request.param)
    tokenizer = tokenizer_for(request.param, directory)
    return request.param, directory, run_ranks(1, _exports, request.param, tokenizer, directory, timeout_s=250)[0]


def test_a_reader_finds_names_shapes_types_and_the_tokenizer(exported: tuple[str, Path, Any]) -> None:
    family, directory, (said, _, _) = exported
    model = _config(family).model
    width, keys = model.dim_per_head, model.num_kv_heads
    for dtype, stored in TYPES.items():
        reader = gguf.GGUFReader(directory / f"{dtype}.gguf")
        fields = {name: field.contents() for name, field in reader.fields.items()}
        assert fields["general.architecture"] == family
        assert fields["general.name"] == _config(family).run.name
        assert fields[f"{family}.block_count"] == model.layers
        assert fields[f"{family}.attention.head_count_kv"] == keys
        assert fields[f"{family}.attention.key_length"] == width
        assert fields[f"{family}.rope.freq_base"] == model.positions.base
        assert len(fields["tokenizer.ggml.tokens"]) == VOCABULARY == len(fields["tokenizer.ggml.token_type"])
        assert fields["tokenizer.ggml.tokens"][-1] == f"[PAD{VOCABULARY - 1}]"
        assert fields["tokenizer.ggml.model"] == ("gpt2" if family == "qwen2" else "llama")
        assert fields["tokenizer.ggml.eos_token_id"] == fields["tokenizer.ggml.bos_token_id"]
        assert fields["tokenizer.ggml.add_bos_token"] is False
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        assert list(tensors["token_embd.weight"].shape) == [model.hidden, VOCABULARY], "innermost first"
        assert list(tensors["blk.1.attn_k.weight"].shape) == [model.hidden, keys * width]
        assert list(tensors["blk.0.ffn_down.weight"].shape) == [model.ffn_dim, model.hidden]
        assert ("output.weight" in tensors) == (not model.tie_word_embeddings)
        assert ("blk.0.attn_q.bias" in tensors) == (family == "qwen2")
        assert ("blk.0.attn_q_norm.weight" in tensors) == (family == "qwen3")
        for name, tensor in tensors.items():
            assert tensor.tensor_type.name == ("F32" if len(tensor.shape) == 1 else stored), name
    moved = {dtype: float(text.rpartition(" ")[2]) for dtype, text in said.items()}
    assert moved["fp32"] == 0 < moved["fp16"] < moved["q8_0"], said
    assert not [path for path in directory.iterdir() if path.name.count("gguf.")], "temporary files are removed"


def test_transformers_reads_the_same_weights(exported: tuple[str, Path, Any], tmp_path: Path) -> None:
    """Reads the file by its own reader, from which the export's check is independent."""
    from safetensors.numpy import load_file

    from pretrain.interop.gguf.unpack import unpack

    family, directory, _ = exported
    unpack(directory / "fp32.gguf", tmp_path / "hf")
    ours = load_file(tmp_path / "hf" / "model.safetensors")
    assert ours["model.embed_tokens.weight"].shape == (VOCABULARY, _config(family).model.hidden)
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(directory, gguf_file="fp32.gguf").state_dict()
    for name, value in ours.items():
        assert np.array_equal(theirs[name].numpy(), value), name


LLAMA_CPP = os.environ.get("LLAMA_CPP_PYTHON")
"""A Python with the package xllamacpp."""
_SERVE = """
import json, sys, xllamacpp as x
params = x.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = sys.argv[1], 64, 1, False
server = x.Server(params)
asked = {"n_predict": 12, "temperature": 0.0, "logprobs": 1, "ignore_eos": True, "cache_prompt": False}
prompts = sys.argv[2], json.loads(sys.argv[3])
print("FOUND", json.dumps([server.handle_completions({"prompt": prompt, **asked}) for prompt in prompts]))
"""


@pytest.mark.slow
@pytest.mark.skipif(LLAMA_CPP is None, reason="set LLAMA_CPP_PYTHON to a Python that has xllamacpp")
def test_llama_cpp_continues_as_we_do(exported: tuple[str, Path, Any]) -> None:
    _, directory, (_, ids, expected) = exported
    words = [str(LLAMA_CPP), "-c", _SERVE, str(directory / "fp32.gguf"), PROMPT, json.dumps(ids)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found, done.stdout + done.stderr
    answers = json.loads(found[0].removeprefix("FOUND "))
    for answer in answers:
        assert answer["usage"]["prompt_tokens"] == len(ids)
    of_text, of_ids = ([entry["bytes"] for entry in answer["choices"][0]["logprobs"]["content"]] for answer in answers)
    assert [byte for token in of_ids for byte in token] == _bytes(directory / "fp32.gguf", expected)
    assert of_text == of_ids, "its tokenizer makes other ids of the text"


def _bytes(file: Path, ids: list[int]) -> list[int]:
    """What the file's vocabulary says that ids are; nothing of those that are no text."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    fields = gguf.GGUFReader(file).fields
    names, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    found: list[int] = []
    for index in ids:
        name = names[index]
        if types[index] == gguf.TokenType.BYTE:
            found.append(int(name[1:-1], 16))
        elif types[index] == gguf.TokenType.NORMAL and fields["tokenizer.ggml.model"].contents() == "gpt2":
            found += [byte_of[character] for character in name]
        elif types[index] == gguf.TokenType.NORMAL:
            found += name.replace("\u2581", " ").encode()
    return found


def test_what_llama_cpp_has_no_form_for_is_refused(tmp_path: Path) -> None:
    from data_pipeline.tokenizers.load import load_tokenizer, train_tokenizer
    from pretrain.interop.gguf.export import _check, vocabulary_of

    path = tmp_path / "tokenizer.model"
    train_tokenizer(["abcd efgh ijkl " * 50], "unigram", 271).save(path)
    with pytest.raises(ConfigError, match="sentencepiece's kind bpe"):
        vocabulary_of(load_tokenizer(path), path)
    rope = {"rope_type": "default", "rope_theta": 1e4}
    for changed, said in (
        ({"rope_parameters": {**rope, "rope_type": "yarn"}}, "yarn scaling"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"hidden_act": "relu"}, "activation relu"),
        ({"rope_parameters": {**rope, "rope_type": "llama3"}, "model_type": "qwen3"}, "of a qwen3"),
    ):
        with pytest.raises(ConfigError, match=said):
            _check({"rope_parameters": rope, "hidden_act": "silu", **changed})
