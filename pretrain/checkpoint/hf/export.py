"""`pretrain export CHECKPOINT --to hf DIR`: weights in Hugging Face's format, after a gate.

The gate loads what was written with transformers and puts the same tokens through both implementations. A directory
whose logits differ by more than GATE is removed again.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GPT2LMHeadModel

from data_pipeline.batch import Rows
from data_pipeline.tokenizer import Tokenizer
from pretrain.checkpoint.hf.gpt2 import hf_config, hf_tensors
from pretrain.config.schema import RunConfig
from pretrain.engine.megatron import MegatronEngine
from pretrain.errors import ConfigError, RunError

GATE = 1e-4  # largest logit difference, fp32


def export(engine: MegatronEngine, config: RunConfig, tokenizer: Path, directory: Path) -> float:
    """Writes `directory` (config.json, model.safetensors, the tokenizer's file) from an fp32 engine on one rank.
    Returns the largest logit difference; raises RunError when the gate does not pass."""
    if directory.exists():
        raise ConfigError(f"{directory} is there already: choose another directory, or remove it")
    described = hf_config(config.model, Tokenizer.load(tokenizer).end_of_text)
    temporary = directory.with_name(f"{directory.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        described.save_pretrained(temporary)
        ours = {name.removeprefix("model/"): part.pieces[0].value for name, part in engine.state().items()}
        tensors = {name: tensor.contiguous() for name, tensor in hf_tensors(config.model, ours)}
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(tokenizer, temporary / "tokenizer.model")
        difference = largest_difference(engine, config, temporary)
        if not difference <= GATE:
            raise RunError(
                f"not exported: logits differ by {difference:.2e} from transformers' GPT-2, more than {GATE:.0e}"
            )
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return difference


def largest_difference(engine: MegatronEngine, config: RunConfig, directory: Path) -> float:
    """Largest absolute logit difference on random tokens, over the model's whole length."""
    assert config.model.vocabulary is not None
    tokens = np.random.default_rng(0).integers(0, config.model.vocabulary, (2, config.model.sequence_length))
    theirs, report = GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    if report["missing_keys"] or report["unexpected_keys"]:
        raise RunError(f"not exported: transformers misses or does not know some weights ({report})")
    with torch.no_grad():
        expected = theirs.eval()(torch.from_numpy(tokens)).logits
    return float((engine.logits(Rows.of(tokens, tokens)) - expected).abs().max())
