"""Folders as transformers' `save_pretrained` writes them, of models small enough for a test, and what may be wrong in
one."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from data_pipeline.tokenizers.load import train_tokenizer

WEIGHTS = "model.safetensors"
VOCABULARY = 300


def write(kind: str, directory: Path) -> Path:
    """A folder of `kind` ("gpt2", "gpt_neo", "bert", "roberta", "xlm", "xlm-alone", "xlm-roberta", "big_bird",
    "big_bird-full", "longformer", "t5", "marian", "bert-classes", "gpt2-number", "llama-classes", "deepseek",
    "deepseek-61"), with a tokenizer.json of 270 ids."""
    import transformers as hf

    size = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
    encoder = size | {"intermediate_size": 64, "max_position_embeddings": 40}
    xlm = {"vocab_size": VOCABULARY, "n_layers": 2, "emb_dim": 32, "n_heads": 2, "max_position_embeddings": 40}
    blocks = {"block_size": 4, "num_random_blocks": 1}
    both = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "pad_token_id": 1}
    models: dict[str, Callable[[], Any]] = {
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=32, n_layer=2, n_head=2)
        ),
        "gpt_neo": lambda: hf.GPTNeoForCausalLM(
            hf.GPTNeoConfig(
                vocab_size=VOCABULARY, max_position_embeddings=32, hidden_size=32, num_layers=3, num_heads=2,
                attention_types=[[["global", "local", "local"], 1]], window_size=5,
            )
        ),
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**encoder, architectures=["BertForMaskedLM"])),
        "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**encoder, type_vocab_size=1)),
        "xlm": lambda: hf.XLMWithLMHeadModel(hf.XLMConfig(**xlm, n_langs=3)),
        "xlm-alone": lambda: hf.XLMWithLMHeadModel(hf.XLMConfig(**xlm)),
        "xlm-roberta": lambda: hf.XLMRobertaForMaskedLM(hf.XLMRobertaConfig(**encoder, type_vocab_size=1)),
        "big_bird": lambda: hf.BigBirdForPreTraining(
            hf.BigBirdConfig(**encoder, **blocks, architectures=["BigBirdForPreTraining"])
        ),
        "big_bird-full": lambda: hf.BigBirdForMaskedLM(
            hf.BigBirdConfig(**encoder, attention_type="original_full", architectures=["BigBirdForMaskedLM"])
        ),
        "longformer": lambda: hf.LongformerForMaskedLM(
            hf.LongformerConfig(**encoder, type_vocab_size=1, attention_window=[4, 8])
        ),
        "t5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=400, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
        ),
        "marian": lambda: hf.MarianMTModel(
            hf.MarianConfig(**both, decoder_start_token_id=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
                            encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=32)
        ),
    }  # fmt: skip
    labels = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
    models |= {
        "bert-classes": lambda: hf.BertForSequenceClassification(hf.BertConfig(**encoder, **labels)),
        "gpt2-number": lambda: hf.GPT2ForSequenceClassification(
            hf.GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=32, n_layer=2, n_head=2, num_labels=1)
        ),
        "llama-classes": lambda: hf.LlamaForSequenceClassification(
            hf.LlamaConfig(**size, intermediate_size=64, max_position_embeddings=40, pad_token_id=3, **labels)
        ),
    }
    latents = {
        "q_lora_rank": None,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_key_value_heads": 2,
    }
    dense = {"first_k_dense_replace": 61, "intermediate_size": 64, "max_position_embeddings": 40}
    models |= {
        "deepseek": lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**size, **latents, **dense)),
        "deepseek-61": lambda: hf.DeepseekV3ForCausalLM(
            hf.DeepseekV3Config(**(size | {"num_hidden_layers": 61}), **latents, **dense)
        ),
    }
    torch.manual_seed(0)
    model = models[kind]()
    for parameter in model.parameters():  # biases and norms too
        torch.nn.init.normal_(parameter, mean=0.02, std=0.1)
    model.save_pretrained(directory)
    train_tokenizer(["abcd efgh ijkl " * 50], "byte_bpe", 270).save(directory / "tokenizer.json")
    return directory


def changed(folder: Path, directory: Path, *changes: Callable[[Path], None]) -> Path:
    """A copy of `folder` with `changes` made."""
    shutil.copytree(folder, directory)
    for change in changes:
        change(directory)
    return directory


def config(**keys: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    return change


def tensors(change_them: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change_them(found)
        save_file({name: value.contiguous() for name, value in found.items()}, folder / WEIGHTS, {"format": "pt"})

    return change


def file(name: str, content: bytes | str | None) -> Callable[[Path], None]:
    """Written, or removed."""

    def change(folder: Path) -> None:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def cut(name: str, keep: float) -> Callable[[Path], None]:
    """Its first part only."""

    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return change


class Runs:
    """Unpickled, it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.trace), "w"))


def pickled(folder: Path) -> None:
    """The weights as a pickle that writes a file, `ran`, when it is read."""
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(folder / "ran")))
