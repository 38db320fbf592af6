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
    "deepseek-61", "llama", "gemma2", "gemma3" (with pictures), "mixtral", "bart", "kanana", "deepseek-fp8"), with
    a tokenizer.json of 270 ids."""
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
    decoder = size | {"intermediate_size": 64, "max_position_embeddings": 40, "num_key_value_heads": 2}
    gemma = decoder | {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    pictures = {"vision_config": vision | {"image_size": 8, "patch_size": 4}, "mm_tokens_per_image": 4}
    wider = decoder | {"hidden_size": 36, "num_attention_heads": 8, "head_dim": 8}
    models |= {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**decoder)),
        "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**gemma)),
        "gemma3": lambda: hf.Gemma3ForConditionalGeneration(hf.Gemma3Config(text_config=gemma, **pictures)),
        "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**decoder, num_local_experts=2)),
        "bart": lambda: hf.BartForConditionalGeneration(
            hf.BartConfig(**both, decoder_start_token_id=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
                          encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=32)
        ),
        "deepseek-fp8": lambda: hf.DeepseekV3ForCausalLM(
            hf.DeepseekV3Config(
                **(size | {"hidden_size": 160}), **latents, intermediate_size=144, moe_intermediate_size=136,
                n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
                max_position_embeddings=40,
            )
        ),
        "kanana": lambda: hf.MistralForCausalLM(hf.MistralConfig(**wider, sliding_window=None)),
    }  # fmt: skip
    torch.manual_seed(0)
    model = models[kind]()
    for parameter in model.parameters():  # biases and norms too
        torch.nn.init.normal_(parameter, mean=0.02, std=0.1)
    model.save_pretrained(directory)
    if kind == "deepseek-fp8":  # as on the hub
        tensors(_in_8_bits)(directory)
        path = directory / "config.json"
        as_saved = {key: value for key, value in json.loads(path.read_text()).items() if key != "dtype"}
        path.write_text(json.dumps(as_saved | _OF_RELEASE))
    if kind == "kanana":  # which transformers 5 does not make
        config(model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False, mlp_bias=False)(directory)
    train_tokenizer(["abcd efgh ijkl " * 50], "byte_bpe", 270).save(directory / "tokenizer.json")
    if kind.startswith("gemma"):  # whose class makes another tokenizer of that
        (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    return directory


_OF_RELEASE = {
    "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    },
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "ep_size": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "aux_loss_alpha": 0.001,
    "seq_aux": True, "pretraining_tp": 1, "torch_dtype": "bfloat16", "transformers_version": "4.33.1",
}  # fmt: skip
"""fields of DeepSeek-V3's config.json that `save_pretrained` does not write"""


def _in_8_bits(values: dict[str, torch.Tensor]) -> None:
    """Projections become e4m3, with a factor for each block by which its largest value is the type's."""
    for name in [name for name in values if name.endswith("proj.weight") or "proj_with" in name]:
        blocks = [rows.split(128, dim=1) for rows in values[name].split(128)]
        scale = torch.tensor([[float(block.abs().max()) / 448 for block in row] for row in blocks])
        rows = [[block / scale[i, j] for j, block in enumerate(row)] for i, row in enumerate(blocks)]
        values[name] = torch.cat([torch.cat(row, dim=1) for row in rows]).to(torch.float8_e4m3fn)
        values[f"{name}_scale_inv"] = scale


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
