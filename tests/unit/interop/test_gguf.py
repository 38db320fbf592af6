"""GGUF files as folders of Hugging Face's: names, the order of rows, gains, tokenizer, and what is refused."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from data_pipeline.tokenizers.load import load_tokenizer
from pretrain.errors import ConfigError
from pretrain.interop.gguf.export import GgufAgreement
from pretrain.interop.gguf.tokenizer import bounds, ends_without_key
from pretrain.interop.gguf.unpack import unpack
from pretrain.interop.hf import chat
from pretrain.interop.hf.gate import Agreement
from pretrain.interop.hf.source_model import GENERATION
from tests.helpers.chat_folders import byte_level

HIDDEN, HEADS, KEYS, WIDTH, FFN = 16, 4, 2, 8, 24
TEMPLATE = "{% for m in messages %}<|endoftext|>{{ m['content'] }}{% endfor %}"
PIECES = ["<|endoftext|>", *"abcd", "ab", "cd"]


def _value(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def _write(path: Path, kind: str, more: str | None = None) -> dict[str, np.ndarray]:
    """A model of one layer; returns its tensors under llama.cpp's names."""
    tensors = {
        "token_embd.weight": _value(len(PIECES), HIDDEN),
        "output_norm.weight": _value(HIDDEN),
        "blk.0.attn_norm.weight": _value(HIDDEN),
        "blk.0.attn_q.weight": _value(HEADS * WIDTH, HIDDEN),
        "blk.0.attn_k.weight": _value(KEYS * WIDTH, HIDDEN),
        "blk.0.attn_v.weight": _value(KEYS * WIDTH, HIDDEN),
        "blk.0.attn_output.weight": _value(HIDDEN, HEADS * WIDTH),
        "blk.0.ffn_norm.weight": _value(HIDDEN),
        "blk.0.ffn_gate.weight": _value(FFN, HIDDEN),
        "blk.0.ffn_up.weight": _value(FFN, HIDDEN),
        "blk.0.ffn_down.weight": _value(HIDDEN, FFN),
    }
    if more is not None:
        tensors[more] = _value(4)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(32)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEYS)
    writer.add_key_length(WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5e4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(PIECES)
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(PIECES) - 1)])
    writer.add_token_merges(["a b", "c d"])
    writer.add_chat_template(TEMPLATE)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_llama_s_rows_are_put_into_halves(tmp_path: Path) -> None:
    theirs = _write(tmp_path / "model.gguf", "llama")
    unpack(tmp_path / "model.gguf", tmp_path / "hf")
    ours = load_file(tmp_path / "hf" / "model.safetensors")
    assert len(ours) == len(theirs)
    assert np.array_equal(ours["model.embed_tokens.weight"], theirs["token_embd.weight"])
    assert np.array_equal(ours["model.layers.0.mlp.up_proj.weight"], theirs["blk.0.ffn_up.weight"])
    assert np.array_equal(ours["model.layers.0.post_attention_layernorm.weight"], theirs["blk.0.ffn_norm.weight"])
    assert np.array_equal(ours["model.layers.0.self_attn.v_proj.weight"], theirs["blk.0.attn_v.weight"])
    for name, heads in (("q", HEADS), ("k", KEYS)):
        found = ours[f"model.layers.0.self_attn.{name}_proj.weight"].reshape(heads, WIDTH, HIDDEN)
        expected = theirs[f"blk.0.attn_{name}.weight"].reshape(heads, WIDTH, HIDDEN)
        assert np.array_equal(found[:, : WIDTH // 2], expected[:, 0::2])
        assert np.array_equal(found[:, WIDTH // 2 :], expected[:, 1::2])
    tokenizer = load_tokenizer(tmp_path / "hf" / "tokenizer.json")
    assert tokenizer.encode("abcd") == [PIECES.index("ab"), PIECES.index("cd")]
    assert tokenizer.end_of_text == 0


def test_a_gemma_s_gains_are_kept_less_one(tmp_path: Path) -> None:
    theirs = _write(tmp_path / "model.gguf", "gemma3")
    unpack(tmp_path / "model.gguf", tmp_path / "hf")
    ours = load_file(tmp_path / "hf" / "model.safetensors")
    found = ours["model.layers.0.pre_feedforward_layernorm.weight"]
    assert np.array_equal(found, theirs["blk.0.ffn_norm.weight"] - 1)
    assert np.array_equal(ours["model.layers.0.self_attn.q_proj.weight"], theirs["blk.0.attn_q.weight"])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3"])
def test_the_width_of_heads_is_that_of_the_file(tmp_path: Path, kind: str) -> None:
    """Its heads are 8 wide, where 16 features in 4 heads would be 4."""
    _write(tmp_path / "model.gguf", kind)
    unpack(tmp_path / "model.gguf", tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["head_dim"] == WIDTH


def test_a_chat_template_is_read_of_it(tmp_path: Path) -> None:
    _write(tmp_path / "model.gguf", "llama")
    unpack(tmp_path / "model.gguf", tmp_path / "hf")
    assert chat.read(tmp_path / "hf") == TEMPLATE


@pytest.mark.parametrize(
    "written", ['"A"', '[{"name": "tools", "template": "B"}, {"name": "default", "template": "A"}]']
)
def test_a_chat_template_of_older_releases_is_read(tmp_path: Path, written: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {written}}}')
    assert chat.read(tmp_path) == "A"


def test_what_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    _write(tmp_path / "other.gguf", "rwkv6")
    _write(tmp_path / "scaled.gguf", "llama", "rope_freqs.weight")
    for name, said in {
        "missing.gguf": "cannot be read",
        "text.gguf": "is no GGUF file",
        "other.gguf": "it is a rwkv6; known are llama, qwen2, qwen3, gemma3",
        "scaled.gguf": "tensor rope_freqs.weight is not known here",
    }.items():
        with pytest.raises(ConfigError, match=said):
            unpack(tmp_path / name, tmp_path / "hf")


def test_ends_that_llama_cpp_has_no_key_for_are_said(tmp_path: Path) -> None:
    names = ["<|endoftext|>", "<|eot|>", "<|eom|>", "<|call|>"]
    byte_level(names, True).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    (tmp_path / "config.json").write_text('{"model_type": "llama", "bos_token_id": 0, "eos_token_id": 0}')
    (tmp_path / GENERATION).write_text(json.dumps({"eos_token_id": [0, 1, 2, 3]}))
    (tmp_path / chat.FILE).write_text(TEMPLATE)
    settings = bounds(tmp_path, 1)
    assert [settings[f"{name}_token_id"] for name in ("eos", "eot", "eom")] == [0, 1, 3]
    assert ends_without_key(tmp_path, settings) == ["<|eom|>"]
    said = str(GgufAgreement(Agreement(difference=0.0, limit=1.0), "fp32", 0.0, ("<|eom|>",)))
    assert "llama.cpp has no key for the ends of text <|eom|>" in said
