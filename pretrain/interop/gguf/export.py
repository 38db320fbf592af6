"""`pretrain export RUN --to gguf FILE`: a decoder of Llama's kind as a file of llama.cpp.

The model is first exported to a Hugging Face folder, behind both gates of `export.py`. The file is made of that folder,
read back by `gguf.py`, and kept only if the names, shapes and values are those of the folder.
Names and order of rows: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from gguf.quants import quantize
from safetensors import safe_open
from torch import Tensor

from data_pipeline.recipes.objective import Objective
from data_pipeline.tokenizers.base import Tokenizer
from data_pipeline.tokenizers.load import load_tokenizer
from data_pipeline.tokenizers.recorded import bare_content
from data_pipeline.tokenizers.sentencepiece_json import bpe_pieces
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import Engine
from pretrain.errors import ConfigError, RunError
from pretrain.interop.gguf.tokenizer import bounds, ends_without_key, rope_factors, rule
from pretrain.interop.gguf.unpack import gguf_name, read_tensors
from pretrain.interop.hf import source_model
from pretrain.interop.hf.conventions import end_of_turn, rendering_of
from pretrain.interop.hf.export import export
from pretrain.interop.hf.gate import Agreement
from pretrain.interop.hf.registry import hf_family_of
from pretrain.interop.hf.repack import WEIGHTS
from pretrain.run_dir.paths import TOKENIZER, run_of

KNOWN = ("llama", "qwen2", "qwen3")
"""model types of Hugging Face whose models go to a GGUF file"""


@dataclass(frozen=True)
class GgufType:
    """Type in which weights are stored; vectors, such as gains, are fp32 in each."""

    quantization: GGMLQuantizationType
    file_type: LlamaFileType
    block: int = 1
    """values that share a scale; rows of another length are stored in fp16"""


TYPES = {
    "fp32": GgufType(GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "fp16": GgufType(GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": GgufType(GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0, block=32),
}
_ROPE_FACTORS = "rope_freqs.weight"
"""llama.cpp's name of what angles are divided by"""


def export_gguf(
    checkpoint: Path, config: RunConfig, file: Path, scorer: Callable[[], Engine], *, dtype: str
) -> "GgufAgreement":
    """Writes `file` from a verified checkpoint, with weights of `dtype`, a key of `TYPES`. Arguments and errors are
    those of `export`; ConfigError also for what llama.cpp has no form for. Takes the memory of two
    models."""
    if file.exists():
        raise ConfigError(f"{file} is there already: choose another file")
    family = hf_family_of(config.model).model_type
    if config.model.task_head is not None:
        raise ConfigError("a model with a task head is not exported to GGUF: llama.cpp predicts tokens")
    if family not in KNOWN:
        raise ConfigError(f"a {family} is not exported to GGUF: known are {', '.join(KNOWN)}")
    vocabulary = vocabulary_of(load_tokenizer(checkpoint / TOKENIZER), checkpoint / TOKENIZER)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f"{file.name}.") as name:
            folder, written = Path(name) / "hf", Path(name) / "model.gguf"
            agreement = export(checkpoint, config, folder, scorer)
            settings = vocabulary.settings | bounds(folder, _end_of_turn(checkpoint, config.objective))
            vocabulary = replace(vocabulary, settings=settings)
            pack(folder, written, dtype, vocabulary, name=config.run.name)
            moved, lost = check_file(folder, written, dtype), ends_without_key(folder, settings)
            written.rename(file)
    except OSError as error:
        raise RunError(f"not exported: {file} cannot be written ({error})") from None
    return GgufAgreement(agreement, dtype, moved, tuple(lost))


def _end_of_turn(checkpoint: Path, objective: Objective) -> int | None:
    """The id that ends a turn by the run's chat template, if it has one that renders an answer."""
    if not run_of(checkpoint).chat_template.is_file():
        return None
    try:
        tokenizer = load_tokenizer(checkpoint / TOKENIZER)
        return end_of_turn(
            rendering_of(checkpoint, objective, tokenizer, source_model.run_source(checkpoint, tokenizer))
        )
    except ValueError:
        return None


@dataclass(frozen=True)
class GgufAgreement:
    """Results of the gate for a model that passed, and of the check of its file."""

    logits: Agreement
    """Agreement of the fp32 weights with transformers."""
    dtype: str
    moved: float
    """Largest difference of a weight in the file."""
    ends_without_key: tuple[str, ...] = ()
    """Names of ends of a text that the file says nothing of."""

    def __str__(self) -> str:
        said = f"{self.logits}; weights in the file, {self.dtype}, differ from it by up to {self.moved:.2e}"
        if not self.ends_without_key:
            return said
        names = ", ".join(self.ends_without_key)
        return f"{said}; llama.cpp has no key for the ends of text {names}, and stops at one only if it knows its name"


@dataclass(frozen=True)
class GgufVocabulary:
    """A tokenizer in llama.cpp's words."""

    model: str
    tokens: list[str]
    types: list[int]
    settings: dict[str, Any]
    """method of the writer, without add_ -> value"""


def pack(folder: Path, file: Path, dtype: str, vocabulary: GgufVocabulary, *, name: str) -> None:
    """Writes the model and tokenizer of a Hugging Face `folder` into `file`, as the model `name`. Raises ConfigError
    for settings that llama.cpp's class of the model does not have."""
    settings = json.loads((folder / "config.json").read_text())
    _check(settings)
    kind = settings["model_type"]
    writer = gguf.GGUFWriter(file, kind)
    width, rope = settings["head_dim"], settings["rope_parameters"]
    writer.add_name(name)
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_head_count_kv(settings["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    writer.add_vocab_size(settings["vocab_size"])
    writer.add_file_type(TYPES[dtype].file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_vocabulary(writer, vocabulary, settings["vocab_size"])
    if (template := folder / "chat_template.jinja").is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))
    if rope.get("rope_type") == "llama3":
        writer.add_tensor(_ROPE_FACTORS, rope_factors(rope, width))
    for tensor, value in _weights(folder, settings):
        quantization = _quantization(value, TYPES[dtype])
        stored = quantize(value, quantization)
        writer.add_tensor(tensor, stored, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_file(folder: Path, file: Path, dtype: str) -> float:
    """Reads `file` as `pretrain import gguf` does. Raises RunError unless its tensors have the names and shapes of
    `folder`, and its values up to the rounding of `dtype`. Returns the largest difference of a weight."""
    settings = json.loads((folder / "config.json").read_text())
    heads = settings["num_attention_heads"], settings["num_key_value_heads"]
    reader = gguf.GGUFReader(file)
    _check_factors(reader, settings)
    reader.tensors = [tensor for tensor in reader.tensors if tensor.name != _ROPE_FACTORS]
    found = read_tensors(reader, settings["model_type"], heads)
    largest = 0.0
    with safe_open(folder / WEIGHTS, "pt") as opened:
        if found.keys() != set(opened.keys()):
            raise RunError(f"not exported: the file holds other tensors: {sorted(found.keys() ^ set(opened.keys()))}")
        for name in opened.keys():  # noqa: SIM118
            value = opened.get_tensor(name)
            if found[name].shape != value.shape:
                raise RunError(
                    f"not exported: {name} is {list(found[name].shape)} in the file, not {list(value.shape)}"
                )
            difference = (found[name] - value).abs()
            if not bool((difference <= _rounding(value, TYPES[dtype])).all()):
                raise RunError(f"not exported: {name} has other values in the file, by up to {difference.max():.3g}")
            largest = max(largest, float(difference.max()))
    return largest


def _check_factors(reader: gguf.GGUFReader, settings: dict[str, Any]) -> None:
    rope, width = settings["rope_parameters"], settings["head_dim"]
    expected = [rope_factors(rope, width)] if rope.get("rope_type") == "llama3" else []
    found = [tensor.data for tensor in reader.tensors if tensor.name == _ROPE_FACTORS]
    if len(found) != len(expected) or not all(map(np.array_equal, found, expected)):
        raise RunError(f"not exported: {_ROPE_FACTORS} has other values in the file")


def _rounding(value: Tensor, stored: GgufType) -> Tensor:
    """Largest difference that each value may have from its stored one."""
    quantization = _quantization(value.numpy(), stored)
    if quantization == GGMLQuantizationType.F32:
        return torch.zeros_like(value)
    if quantization == GGMLQuantizationType.F16:
        return value.abs() * 2.0**-11 + 2.0**-25
    blocks = value.reshape(-1, stored.block)
    # Half a step of the block's scale, which fp16 holds: each of up to 127 steps is off by its rounding.
    scale = blocks.abs().amax(1, keepdim=True) / 127
    return (0.5 * scale * 1.001 + blocks.abs() * 2.0**-10 + 127 * 2.0**-24).expand_as(blocks).reshape(value.shape)


def _quantization(value: np.ndarray, stored: GgufType) -> GGMLQuantizationType:
    """Type of one tensor: llama.cpp computes with vectors in fp32, and a block does not reach over a row's end."""
    if value.ndim == 1:
        return GGMLQuantizationType.F32
    return GGMLQuantizationType.F16 if value.shape[-1] % stored.block else stored.quantization


def _check(settings: dict[str, Any]) -> None:
    """Raises ConfigError for a model that llama.cpp would compute otherwise."""
    rope = settings["rope_parameters"]
    if rope.get("rope_type", "default") not in ("default", "llama3"):
        raise ConfigError(f"rotary positions with {rope['rope_type']} scaling are not exported to GGUF")
    if rope.get("rope_type") == "llama3" and settings["model_type"] != "llama":
        raise ConfigError(
            f"rotary positions with llama3 scaling are not exported to GGUF of a {settings['model_type']}: llama.cpp "
            "reads them of a llama alone"
        )
    if any(kind != "full_attention" for kind in settings.get("layer_types") or ()):
        raise ConfigError("layers with a sliding window are not exported to GGUF")
    if settings["hidden_act"] != "silu":
        raise ConfigError(f"activation {settings['hidden_act']} is not exported to GGUF: llama.cpp has silu here")


def _weights(folder: Path, settings: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors under llama.cpp's names, of which Llama's queries and keys have other rows."""
    heads = {"attn_q": settings["num_attention_heads"], "attn_k": settings["num_key_value_heads"]}
    with safe_open(folder / WEIGHTS, "pt") as opened:
        for hf_name in opened.keys():  # noqa: SIM118
            value = opened.get_tensor(hf_name)
            name = gguf_name(hf_name)
            part = name.split(".")[-2]
            if settings["model_type"] == "llama" and part in heads:
                value = _pairs(value, heads[part])
            yield name, np.ascontiguousarray(value.numpy(), dtype=np.float32)


def _pairs(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `gguf._halves`: pairs that rotary positions turn lie side by side in Llama's files."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: GgufVocabulary, size: int) -> None:
    """Ids that the model has and the tokenizer has not are named, as llama.cpp wants a name for each."""
    names, types = list(vocabulary.tokens), list(vocabulary.types)
    missing = range(len(names), size)
    names += [f"[PAD{number}]" for number in missing]
    types += [int(TokenType.UNUSED)] * len(missing)
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(names)
    writer.add_token_types(types)
    for name, value in vocabulary.settings.items():
        if name == "token_scores":
            value = [*value, *[0.0] * len(missing)]
        getattr(writer, f"add_{name}")(value)


def vocabulary_of(tokenizer: Tokenizer, file: Path) -> GgufVocabulary:
    """Raises ConfigError for a kind of tokenizer that llama.cpp has no form for. What begins and ends a text is left
    open (`bounds`)."""
    if tokenizer.library == "sentencepiece":
        if (pieces := bpe_pieces(bare_content(file.read_bytes()))) is None:
            raise ConfigError(
                f"{file} is not exported to GGUF: llama.cpp has sentencepiece's kind bpe without normalization"
            )
        own = {
            "token_scores": pieces.scores,
            "add_space_prefix": pieces.begins_with_space,
            "unk_token_id": pieces.unknown,
        }
        return GgufVocabulary("llama", pieces.names, pieces.types, own)  # llama.cpp numbers types alike
    tree = json.loads(tokenizer.to_json())
    name = rule(tree)
    if name is None:
        raise ConfigError(f"{file} is not exported to GGUF: llama.cpp is not known to cut texts as this tokenizer does")
    special = {token["id"] for token in tree["added_tokens"] if token["special"]}
    plain = {token["id"] for token in tree["added_tokens"]} - special
    pieces_of = {index: piece for piece, index in tree["model"]["vocab"].items()}
    pieces_of |= {token["id"]: token["content"] for token in tree["added_tokens"]}
    size = max(pieces_of) + 1
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tree["model"]["merges"]]
    types = [
        TokenType.CONTROL if i in special else TokenType.USER_DEFINED if i in plain
        else TokenType.NORMAL if i in pieces_of else TokenType.UNUSED
        for i in range(size)
    ]  # fmt: skip
    return GgufVocabulary(
        "gpt2",
        [pieces_of.get(index, f"[PAD{index}]") for index in range(size)],
        list(map(int, types)),
        {"tokenizer_pre": name, "token_merges": merges},
    )
