"""Checkpoints for export: with random weights that are a function of their names, and a real tokenizer."""

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from data_pipeline.tokenizers.byte import ByteTokenizer
from data_pipeline.tokenizers.load import train_tokenizer
from data_pipeline.tokenizers.specials import Specials
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.state import Record
from pretrain.config.run_config import RunConfig
from pretrain.engine.megatron.engine import MegatronEngine


def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter's random values; the same on every layout."""
    noise = np.random.default_rng(crc32(name.encode())).standard_normal(shape, np.float32) * 0.1
    return noise + 1 if len(shape) == 1 and name.endswith("weight") else noise


def randomise(engine: MegatronEngine, zero: str = "nothing") -> None:
    """Gives every parameter its random values; those whose names end in `zero` become 0."""
    for name, part in engine.state().items():
        kind, _, parameter = name.partition("/")
        for piece in part.pieces if kind == "model" else ():
            box = tuple(slice(o, o + n) for o, n in zip(piece.offset, piece.value.shape, strict=True))
            piece.value.copy_(torch.from_numpy(value(parameter, part.shape)[box] * (not parameter.endswith(zero))))
    engine.state_loaded(0)


def save(engine: MegatronEngine, config: RunConfig, tokenizer: Path, directory: Path) -> Path:
    """The engine's state as checkpoint 0 in `directory`. Collective."""
    cursor = {"samples": 0, "fingerprint": "f"}
    record = Record(
        step=0,
        updates=0,
        tokens=0,
        cursor=cursor,
        config=config.model_dump(mode="json"),
        layout=str(engine.layout),
        versions={"torch": torch.__version__},
    )
    with Saver(directory, keep=1, in_flight=0) as saver:
        saver.save(engine.state(), record, tokenizer.read_bytes())
    return directory / "step-00000000"


def tokenizer_for(family: str, directory: Path) -> Path:
    """A file of the kind that the family's own models have: RoBERTa's positions depend on its id of padding."""
    texts = ["abcd efgh ijkl " * 50]
    if family == "qwen2":  # transformers reads every tokenizer.json beside such a model as one of these
        from transformers import Qwen2Tokenizer

        theirs = Qwen2Tokenizer().train_new_from_iterator(texts, 270)
        theirs.backend_tokenizer.save(str(directory / "tokenizer.json"))
        return directory / "tokenizer.json"
    kind, size = ("byte_bpe", 270) if family in ("roberta", "longformer") else ("bpe", 280)
    tokenizer = ByteTokenizer() if family == "byt5" else train_tokenizer(texts, kind, size)
    path = directory / tokenizer.file_name
    tokenizer.save(path)
    return path


def read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def with_weights_of(engine: MegatronEngine, config: RunConfig, specials: Specials) -> tuple[Any, list[Any]]:
    """Hugging Face's model with the weights of an engine of one rank, and the links to it."""
    from torch import nn

    from pretrain.interop.hf.registry import hf_family_of

    family, state = hf_family_of(config.model), engine.state()
    links = list(family.links_of_loaded(config.model))
    weights = {}
    for link in links:
        values = [state[f"model/{name}"].pieces[0].value for name in link.mcore_names]
        weights |= dict(zip(link.hf_names, (x.clone() for x in link.out(*values)), strict=True))
    described = family.hf_config(config.model, specials)
    if config.model.experts is not None:
        described._experts_implementation = "eager"
    theirs = family.class_of(config.model)(described)
    if not config.model.tie_word_embeddings:  # transformers ties every new T5's
        theirs.get_output_embeddings().weight = nn.Parameter(theirs.get_input_embeddings().weight.detach().clone())
    theirs.load_state_dict(weights, strict=False)
    return theirs.eval(), links
