"""Folders as they are released: what of them is imported in another way than `save_pretrained` writes a model, and what
is refused by name. `tests/multirank/test_hf_released.py` imports and exports them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.errors import ConfigError
from pretrain.interop.hf.fp8_blocks import check_settings, dequantised, scale_shape
from tests.helpers.hf_folders import changed, config, tensors, write
from tests.unit.interop.test_import_refusals import refused

FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
HEAD, WORDS = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("released")
    kinds = ("llama", "gemma2", "gemma3", "mixtral", "gpt2", "t5", "bert", "bart", "deepseek-fp8")
    return {kind: write(kind, root / kind) for kind in kinds}


def _model(folder: Path, random_head: bool = False) -> Any:
    from pretrain.interop.hf.imports import read_config

    return read_config(folder, folder.parent / "run", random_head=random_head).model


def _notes(folder: Path) -> str:
    from pretrain.interop.hf.folder import read

    return "; ".join(read(folder).notes)


# Weights in 8 bits.


def test_blocks_are_dequantised_as_transformers_does() -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 384, generator=draw).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3, generator=draw) + 0.01
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
    assert torch.equal(dequantised(weight, scale), theirs)


@pytest.mark.parametrize("shape", [(576, 200), (100, 128), (1, 1), (129, 257)])
def test_the_last_blocks_of_a_row_and_a_column_may_be_smaller(shape: tuple[int, int]) -> None:
    """Shapes such as DeepSeek-V3's [576, 7168], which transformers' own code does not take."""
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=draw).to(torch.float8_e4m3fn)
    scale = torch.rand(scale_shape(shape), generator=draw) + 0.5
    value = dequantised(weight, scale)
    assert value.dtype == torch.float32
    for row, column in ((0, 0), (shape[0] - 1, 0), (0, shape[1] - 1), (shape[0] - 1, shape[1] - 1)):
        assert value[row, column] == weight[row, column].float() * scale[row // 128, column // 128]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"quant_method": "gptq"}, "quant_method gptq"),
        ({"fmt": "e5m2"}, "fmt e5m2"),
        ({"weight_block_size": [64, 64]}, r"weight_block_size \[64, 64\]"),
        ({"weight_block_size": None}, "weight_block_size None"),
        ({"activation_scheme": "static"}, "activation_scheme static"),
        ({"bits": 4}, "bits"),
    ],
)
def test_another_quantisation_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    check_settings(FP8)
    with pytest.raises(ConfigError, match=named):
        check_settings(FP8 | change)


def _without_a_scale(values: dict[str, torch.Tensor]) -> None:
    del values[next(name for name in values if name.endswith("_scale_inv"))]


def test_a_tensor_in_8_bits_is_read_by_itself_and_without_its_factors_it_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    from pretrain.interop.hf.folder import read, values_of

    folder, name = folders["deepseek-fp8"], "model.layers.0.mlp.down_proj.weight"
    found = read(folder)
    assert not any(name.endswith("_scale_inv") for name in found.tensors)
    assert "in fp8 with factors for blocks of 128 x 128 are dequantised" in "; ".join(found.notes)
    stored = load_file(folder / "model.safetensors")
    expected = dequantised(stored[name], stored[f"{name}_scale_inv"])
    assert torch.equal(values_of(found, [name])[name], expected)
    lazy = found.weights.lazy()
    assert lazy is not None
    assert torch.equal(lazy[name][...], expected)
    assert "in fp8 has factors for its blocks of shape None" in refused(
        changed(folder, tmp_path / "without", tensors(_without_a_scale))
    )
    assert "is F8_E4M3: save the weights" in refused(
        changed(folder, tmp_path / "unsaid", config(quantization_config=None))
    )


# Ties.


def _another_head(values: dict[str, torch.Tensor]) -> None:
    values[HEAD] = values[WORDS] * 2


def _same_head(values: dict[str, torch.Tensor]) -> None:
    values[HEAD] = values[WORDS].clone()


def test_a_head_that_is_tied_is_untied_where_the_file_has_another(folders: dict[str, Path], tmp_path: Path) -> None:
    tied = changed(folders["llama"], tmp_path / "tied", config(tie_word_embeddings=True), tensors(_same_head))
    assert _model(tied).tie_word_embeddings
    assert not _notes(tied)
    other = changed(tied, tmp_path / "other", tensors(_another_head))
    assert not _model(other).tie_word_embeddings
    assert "ties lm_head.weight to the embedding, and its file has another tensor: it is imported untied" in _notes(
        other
    )


@pytest.mark.parametrize(
    ("kind", "alias", "source"),
    [
        ("t5", "lm_head.weight", "shared.weight"),
        ("t5", "decoder.embed_tokens.weight", "shared.weight"),
        ("bart", "lm_head.weight", "model.shared.weight"),
        ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
)
def test_other_ties_that_the_file_breaks_are_refused_by_name(
    kind: str, alias: str, source: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    same = changed(folders[kind], tmp_path / "same", tensors(lambda t: t.update({alias: t[source].clone()})))
    _model(same)
    other = changed(folders[kind], tmp_path / "other", tensors(lambda t: t.update({alias: t[source] * 2})))
    assert alias in refused(other)


def test_a_decoder_without_a_head_is_imported_only_if_that_is_asked_for(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(folders["llama"], tmp_path / "headless", tensors(lambda t: t.pop(HEAD)))
    assert "has no tensor lm_head.weight" in refused(folder)
    assert "--random-head" in refused(folder)
    assert not _model(folder, random_head=True).tie_word_embeddings


# Fields of config.json.

ROPE = {"rope_type": "default", "rope_theta": 1e4}
FIELDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a part of each head turned": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not known"),
    "the same in rope_parameters": (
        "llama", {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 is not known",
    ),
    "the same in rope_scaling": (
        "llama",
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25}},
        "partial_rotary_factor 0.25 is not known",
    ),
    "an unknown key of positions": ("llama", {"rope_parameters": ROPE | {"mrope_section": [2, 2]}}, "mrope_section"),
    "biases": ("llama", {"attention_bias": True}, "attention_bias is not known"),
    "attention to both sides": ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "a decoder of BERT's": ("bert", {"is_decoder": True}, "is_decoder True is not known here: it is False"),
    "attention to another model": ("gpt2", {"add_cross_attention": True}, "add_cross_attention True is not known"),
    "unscaled scores": ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights False is not known"),
    "scores scaled by layer": (
        "gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True is not known",
    ),
    "two sizes of heads": ("bart", {"decoder_attention_heads": 4}, "decoder_attention_heads 4 is not known"),
    "an untied BERT": ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings False is not known"),
    "another file of weights": ("llama", {"transformers_weights": "x.safetensors"}, "has transformers_weights"),
    "a Gemma that transformers does not take": (
        "gemma2", {"num_attention_heads": 3, "num_key_value_heads": 3}, "is not a multiple of the number of attention",
    ),
    "a Gemma 3 for classes": (
        "gemma3", {"architectures": ["Gemma3ForSequenceClassification"]}, "Gemma3ForConditionalGeneration is known",
    ),
    "a Gemma 3 without a text model": ("gemma3", {"text_config": None}, "no text_config of a gemma3_text"),
    "code of its own and no type": ("llama", {"auto_map": {"AutoModel": "x.Y"}, "model_type": None}, "is a None"),
    "a number for a class": (
        "llama", {"hidden_size": 48, "num_attention_heads": 5, "head_dim": 16, "architectures": [3]}, "cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_changes_the_model_is_read_or_refused_by_name(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    kind, change, expected = FIELDS[name]
    assert expected in refused(changed(folders[kind], tmp_path / "folder", config(**change)))


SAID: dict[str, tuple[str, dict[str, Any], str]] = {
    "nothing": ("llama", {}, ""),
    "what changes nothing": (
        "llama", {"use_cache": False, "pretraining_tp": 2, "torch_dtype": "bfloat16", "rope_theta": 1e4}, "",
    ),
    "code of its own": ("llama", {"auto_map": {"AutoModel": "x.Y"}}, "its auto_map names code of its own"),
    "dropout of another kind": ("bart", {"activation_dropout": 0.1}, "has activation_dropout 0.1 of training"),
    "dropout of the embedding": ("gpt2", {"embd_pdrop": 0.3}, "has embd_pdrop 0.3 of training"),
    "noise of the router": ("mixtral", {"router_jitter_noise": 0.1}, "has router_jitter_noise 0.1 of training"),
    "a key of another class": (
        "llama", {"residual_multiplier": 0.5}, "has residual_multiplier, which transformers' LlamaConfig does not read",
    ),
    "text and pictures": ("gemma3", {}, "it is a model of text and pictures: only its text model is imported"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_not_continued_is_said(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    kind, change, expected = SAID[name]
    notes = _notes(changed(folders[kind], tmp_path / "folder", config(**change)))
    assert expected in notes
    assert bool(notes) == bool(expected)


def test_the_text_model_of_a_gemma_3_is_found_under_both_names(folders: dict[str, Path], tmp_path: Path) -> None:
    """Files of its first release and of later ones name tensors otherwise."""
    from pretrain.interop.hf.folder import read

    def renamed(values: dict[str, torch.Tensor]) -> None:
        for name in [name for name in values if name.startswith("language_model.model.")]:
            values[name.replace("language_model.model.", "model.language_model.")] = values.pop(name)

    first = read(folders["gemma3"])
    later = read(changed(folders["gemma3"], tmp_path / "later", tensors(renamed)))
    assert first.tensors == later.tensors
    assert WORDS in first.tensors
    assert not any("vision" in name or "projector" in name for name in first.tensors)


# Sizes.


def test_the_scale_of_scores_is_a_number_of_its_own(folders: dict[str, Path]) -> None:
    """Scale of Gemma 2 27B: 144, with heads of 128."""
    model = _model(folders["gemma2"])
    assert (model.query_pre_attn_scalar, model.dim_per_head) == (24, 16)
    assert model.score_scale == 24**-0.5
    assert model.model_copy(update={"query_pre_attn_scalar": None}).score_scale == 16**-0.5


def test_heads_that_do_not_divide_the_width_are_read_as_a_mistral_s(folders: dict[str, Path], tmp_path: Path) -> None:
    """Width of Kanana, a llama of 1792 with 24 heads of 128, which transformers 5 does not take."""
    from pretrain.interop.hf.folder import read

    folder = write("kanana", tmp_path / "kanana")
    found = read(folder)
    assert type(found.hf_config).__name__ == "MistralConfig"
    assert "takes no hidden_size 36 with num_attention_heads 8: it is read as a mistral" in found.notes[0]
    model = _model(folder)
    assert (model.hidden, model.heads, model.dim_per_head) == (36, 8, 8)
    assert model.attention.pattern[0].name == "dense"


@pytest.mark.parametrize("family", ["gemma2", "gemma"])
def test_a_width_that_no_class_takes_is_refused_in_a_sentence_at_an_export(family: str) -> None:
    from pretrain.interop.hf.registry import hf_family_of
    from tests.helpers.families import family_config
    from tests.multirank.test_hf import SPECIALS

    model = family_config(family, model={"hidden": 36, "heads": 8, "kv_heads": 4, "head_dim": 8}).model
    with pytest.raises(ConfigError, match=r"does not take model\.hidden=36 with model\.heads=8") as error:
        hf_family_of(model).describe(model, SPECIALS)
    assert "\n" not in str(error.value)


def test_no_field_of_an_export_is_refused_or_said() -> None:
    from pretrain.interop.hf import fields
    from pretrain.interop.hf.heads import objective_of
    from pretrain.interop.hf.registry import hf_family_of
    from tests.multirank import test_hf

    for name in test_hf.EXPORTED:
        model = test_hf._config(name, {}).model
        family = hf_family_of(model)
        tree = json.loads(family.describe(model, test_hf.SPECIALS).to_json_string())
        noted_tree = fields.NotedTree(tree | {"tie_word_embeddings": model.tie_word_embeddings})
        family.refuse(noted_tree, 10**6)
        noted = fields.NotedConfig(family.model_class.config_class.from_dict(dict(noted_tree)))
        objective_of(noted, family)
        family.model_of(noted)
        assert not fields.check(dict(noted_tree), type(noted._config), noted_tree.read | noted.noted), name
