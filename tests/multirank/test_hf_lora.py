"""Runs with low-rank updates as models of transformers: W + alpha / rank * B A in place of W, for any layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.config.run_config import RunConfig
from tests.helpers.breadth import only
from tests.helpers.families import family_config
from tests.helpers.hf import randomise, save, tokenizer_for, value
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import LENGTH, build_engine, tiny_config

VOCABULARY = 390
CLASSES = {"name": "classification", "labels": ["no", "maybe", "yes"]}
GPT: dict[str, dict[str, Any]] = {"gpt": {"attention": {}}, "gpt-banded": {}}
LAYER = ["qkv", "projection", "fc1", "fc2"]
CROSS = ["cross_q", "cross_kv", "cross_projection"]
LAYOUT = {"tensor": 2, "pipeline": 2}
RANK, ALPHA = 4, 6.0


def lora_config(family: str, classifies: bool, parallel: dict[str, Any] | None = None, **lora: Any) -> RunConfig:
    """A tiny model of the family with updates of all its linear layers, unless `lora` says other settings."""
    sections: dict[str, Any] = {
        "model": {"vocabulary": VOCABULARY} | GPT.get(family, {}),
        "parallel": parallel or {},
        "optimizer": {"clip_norm": 0.0},
    }
    config = tiny_config(**sections) if family in GPT else family_config(family, **sections)
    targets = LAYER + (CROSS if config.model.is_encoder_decoder else [])
    tree = config.model_dump(mode="json")
    tree["finetune"] = {"lora": {"rank": RANK, "alpha": ALPHA, "targets": targets} | lora}
    if classifies:
        tree["objective"] = CLASSES
        tree["model"]["target_length"] = tree["model"]["target_length"] and LENGTH
    return RunConfig.model_validate(tree)


# What runs on ranks. transformers takes seconds to import: only where it is needed.


def _write(family: str, classifies: bool, parallel: dict[str, Any], tokenizer: Path, directory: Path) -> None:
    config = lora_config(family, classifies, parallel)
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, directory)


def _merged(family: str, classifies: bool, checkpoint: Path, exported: Path) -> Any:
    """(difference at the gate, tensors of the export, the same made of the values that the checkpoint has)."""
    import torch
    from safetensors.numpy import load_file

    from data_pipeline.tokenizers.load import load_tokenizer
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.heads import decoder_padding, with_head
    from pretrain.interop.hf.registry import hf_family_of
    from pretrain.model_spec.modules import parameter_specs
    from pretrain.model_spec.router_biases import router_bias_shapes

    config = lora_config(family, classifies)
    agreement = export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    hf_family = hf_family_of(config.model)
    if classifies:
        pad = decoder_padding(config.model, config.objective, load_tokenizer(next(checkpoint.glob("tokenizer*"))))
        hf_family = with_head(hf_family, config.objective, pad)
    values = {spec.name: value(spec.name, spec.shape) for spec in parameter_specs(config.model)}
    values |= {name: value(name, shape) for name, shape in router_bias_shapes(config.model).items()}
    for a in [name for name in values if name.endswith("lora_a.weight")]:
        b, weight = a.replace("lora_a", "lora_b"), a.replace("lora_a.", "")
        values[weight] = values[weight] + ALPHA / RANK * values[b] @ values[a]
    expected = {}
    for link in hf_family.links(config.model):
        tensors = link.out(*(torch.from_numpy(values[name].astype(np.float32)) for name in link.mcore_names))
        expected |= {name: x.numpy() for name, x in zip(link.hf_names, tensors, strict=True)}
    return agreement.difference, load_file(exported / "model.safetensors"), expected


@pytest.mark.parametrize(
    ("family", "classifies"),
    only(
        [("gpt", False), ("albert", True), ("bart", True)],
        [
            *(
                (name, False)
                for name in (
                    "gpt",
                    "gpt-banded",
                    "bert",
                    "llama",
                    "mistral",
                    "gemma",
                    "bloom",
                    "t5",
                    "bart",
                    "mixtral",
                    "qwen3_moe",
                    "dots1",
                )
            ),
            *(
                (name, True)
                for name in ("gpt", "bert", "albert", "roformer", "tlm", "llama", "t5v1.1", "bart", "mixtral")
            ),
        ],
    ),
)
def test_updates_are_merged_into_the_weights_of_an_export(family: str, classifies: bool, tmp_path: Path) -> None:
    tokenizer = tokenizer_for(family, tmp_path)
    run_ranks(4, _write, family, classifies, LAYOUT, tokenizer, tmp_path / "checkpoints")
    checkpoint = tmp_path / "checkpoints" / "step-00000000"
    difference, tensors, expected = run_ranks(1, _merged, family, classifies, checkpoint, tmp_path / "hf")[0]
    assert difference <= 1e-4
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert np.allclose(tensor, expected[name], rtol=1e-5, atol=1e-6), name
