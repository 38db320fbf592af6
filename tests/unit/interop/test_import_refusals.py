"""Folders that `pretrain import hf` refuses, in a sentence that names what is wrong, before anything is built."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from data_pipeline.tokenizers.load import load_tokenizer, train_tokenizer
from pretrain.errors import ConfigError
from tests.helpers.datasets import make_documents
from tests.helpers.hf_folders import WEIGHTS, changed, config, cut, file, pickled, tensors, write

FC = "transformer.h.1.mlp.c_fc.weight"
INDEX = "model.safetensors.index.json"
WORDS = ["abcd efgh ijkl " * 50]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hf")
    return {kind: write(kind, root / kind) for kind in ("gpt2", "bert", "roberta", "marian", "gpt_neo", "xlm")}


def refused(folder: Path) -> str:
    from pretrain.interop.hf.imports import read_config

    with pytest.raises(ConfigError) as error:
        read_config(folder, folder.parent / "run")
    message = str(error.value)
    assert "\n" not in message
    return message


def _renamed(values: dict[str, torch.Tensor]) -> None:
    values["transformer.h.1.mlp.fc.weight"] = values.pop(FC)


def _index(target: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": {"transformer.wte.weight": target}}))

    return change


def _larger(folder: Path) -> None:
    train_tokenizer(make_documents(0, 50), "byte_bpe", 301).save(folder / "tokenizer.json")


CHANGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a missing tensor": ("gpt2", tensors(lambda t: t.pop(FC)), f"has no tensor {FC}"),
    "a renamed tensor": ("gpt2", tensors(_renamed), f"has no tensor {FC}"),
    "no embedding": ("gpt2", tensors(lambda t: t.pop("transformer.wte.weight")), "no tensor transformer.wte.weight"),
    "no body of BERT": (
        "bert",
        tensors(lambda t: t.pop("bert.encoder.layer.0.attention.self.key.weight")),
        "no tensor bert.encoder.layer.0.attention.self.key.weight",
    ),
    "another shape": ("gpt2", config(n_inner=96), "c_fc.weight is [32, 128], and config.json makes it [32, 96]"),
    "another vocabulary": ("gpt2", config(vocab_size=999), "is [300, 32], and config.json makes it [999, 32]"),
    "more layers than tensors": ("gpt2", config(n_layer=100_000), "has 100,000 layers, and the folder has"),
    "more local layers": (
        "gpt_neo",
        config(num_layers=10**9, attention_types=[[["local"], 10**9]]),
        "has 1,000,000,000 layers",
    ),
    "impossible widths": ("gpt2", config(n_embd=10**9), "is [300, 32], and config.json makes it"),
    "a word for a number": ("gpt2", config(n_embd="42"), "config.json"),
    "null for a number": ("gpt2", config(n_embd=None), "config.json"),
    "null ids": ("roberta", config(pad_token_id=None), "pad_token_id is null"),
    "a list": ("gpt2", file("config.json", "[]"), "is no JSON object"),
    "no JSON": ("gpt2", file("config.json", "{"), "config.json cannot be read"),
    "relative positions": ("bert", config(position_embedding_type="relative_key"), "relative_key is not known"),
    "XLM's sines": ("xlm", config(sinusoidal_embeddings=True), "sinusoidal_embeddings of XLM is not known"),
    "a causal XLM": ("xlm", config(causal=True), "causal of XLM is not known"),
    "two vocabularies of a config": ("marian", config(decoder_vocab_size=200), "two vocabularies"),
    "an unknown activation": ("gpt2", config(activation_function="silu"), "the activation 'silu' is not known"),
    "an unknown type with code": (
        "gpt2", config(model_type="mine", auto_map={"AutoConfig": "code.Config"}), "is a mine; known are",
    ),
    "quantised": ("gpt2", config(quantization_config={"bits": 4}), "quantization_config"),
    "quantised tensors": (
        "gpt2", tensors(lambda t: t.update({FC: t[FC].to(torch.int8)})), f"{FC} is I8: save the weights in fp32",
    ),
    "cut weights": ("gpt2", cut(WEIGHTS, 0.5), "model.safetensors cannot be read"),
    "empty weights": ("gpt2", file(WEIGHTS, b""), "model.safetensors cannot be read"),
    "no weights": ("gpt2", file(WEIGHTS, None), "has no model.safetensors"),
    "a pickle": ("gpt2", pickled, "pytorch_model.bin, a pickle"),
    "an index that points outside": ("gpt2", _index("../outside.safetensors"), "names '../outside.safetensors'"),
    "an index that names what is not there": ("gpt2", _index("other.safetensors"), "other.safetensors cannot be read"),
    "no tokenizer": ("gpt2", file("tokenizer.json", None), "has no tokenizer: put its tokenizer.json"),
    "a broken tokenizer": ("gpt2", file("tokenizer.json", "{}"), "tokenizer.json"),
    "a larger tokenizer": ("gpt2", _larger, "has 301 ids"),
    "two vocabularies": (
        "gpt2", lambda folder: train_tokenizer(WORDS, "bpe", 280).save(folder / "tokenizer.model"), "two vocabularies",
    ),
    "an adapter": ("gpt2", file("adapter_config.json", "{}"), "holds an adapter"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_folder_that_is_not_what_it_says_is_refused_in_a_sentence(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    kind, change, expected = CHANGES[name]
    folder = changed(folders[kind], tmp_path / "folder", change)
    assert expected in refused(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("kind", ["gpt2", "bert", "roberta", "gpt_neo"])
def test_a_whole_folder_is_read(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    from pretrain.interop.hf.imports import read_config

    model = read_config(folders[kind], tmp_path / "run").model
    assert (model.hidden, model.vocabulary) == (32, 300)
    assert [pattern.name for pattern in model.attention.pattern] == (
        ["dense", "banded", "banded"] if kind == "gpt_neo" else ["dense"]
    )


def test_a_head_may_be_missing(folders: dict[str, Path], tmp_path: Path) -> None:
    from pretrain.interop.hf.imports import read_config

    def body_alone(values: dict[str, torch.Tensor]) -> None:
        for name in list(values):
            value = values.pop(name)
            if name.startswith("bert."):
                values[name.removeprefix("bert.")] = value

    read_config(changed(folders["bert"], tmp_path / "folder", tensors(body_alone)), tmp_path / "run")


def test_gelu_pytorch_tanh_is_the_tanh_form(folders: dict[str, Path], tmp_path: Path) -> None:
    from pretrain.interop.hf.imports import read_config

    folder = changed(folders["gpt2"], tmp_path / "folder", config(activation_function="gelu_pytorch_tanh"))
    assert read_config(folder, tmp_path / "run").model.activation == "gelu_tanh"


def test_the_tokenizer_of_an_export_is_the_one_it_was_trained_with(folders: dict[str, Path], tmp_path: Path) -> None:
    from pretrain.interop.hf import vocabulary
    from pretrain.interop.hf.imports import read_config

    trained = train_tokenizer(WORDS, "bpe", 280)
    folder = changed(folders["gpt2"], tmp_path / "folder", file("tokenizer.json", trained.to_json()))
    (folder / "original").mkdir()
    trained.save(folder / "original" / "tokenizer.model")
    (tmp_path / "found").write_bytes(vocabulary.read(folder, read_config(folder, tmp_path / "run")))
    assert load_tokenizer(tmp_path / "found").identity == trained.identity


def test_the_pair_of_files_of_roberta_is_read(folders: dict[str, Path], tmp_path: Path) -> None:
    from pretrain.interop.hf import vocabulary
    from pretrain.interop.hf.imports import read_config

    whole = json.loads((folders["roberta"] / "tokenizer.json").read_text())["model"]
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in whole["merges"])])
    folder = changed(
        folders["roberta"],
        tmp_path / "folder",
        file("tokenizer.json", None),
        file("vocab.json", json.dumps(whole["vocab"])),
        file("merges.txt", merges),
    )
    (tmp_path / "found").write_bytes(vocabulary.read(folder, read_config(folder, tmp_path / "run")))
    found, expected = load_tokenizer(tmp_path / "found"), load_tokenizer(folders["roberta"] / "tokenizer.json")
    text = "abcd  <mask> efgh\n\u4e2d"
    assert found.encode(text) == expected.encode(text)
    assert (found.end_of_text, found.id_of("<mask>")) == (expected.end_of_text, expected.id_of("<mask>"))


def test_byt5_has_a_tokenizer_without_a_file(tmp_path: Path) -> None:
    from transformers import ByT5Tokenizer, T5Config, T5ForConditionalGeneration

    from pretrain.interop.hf import vocabulary
    from pretrain.interop.hf.imports import read_config

    shape = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 1}
    described = T5Config(vocab_size=384, feed_forward_proj="gated-gelu", tie_word_embeddings=False, **shape)
    T5ForConditionalGeneration(described).save_pretrained(tmp_path / "byt5")
    ByT5Tokenizer().save_pretrained(tmp_path / "byt5")
    config = read_config(tmp_path / "byt5", tmp_path / "run")
    (tmp_path / "bytes.json").write_bytes(vocabulary.read(tmp_path / "byt5", config))
    tokenizer = load_tokenizer(tmp_path / "bytes.json")
    theirs = ByT5Tokenizer()
    text = "Grüße, 世界"
    assert tokenizer.encode_batch([text])[0].tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert config.objective.specials(tokenizer).sentinels[:2] == (258, 257)
    (tmp_path / "byt5" / "tokenizer_config.json").unlink()
    assert "has no tokenizer" in refused(tmp_path / "byt5")
