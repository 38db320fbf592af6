"""Models tuned on `text_to_text` as models of transformers, and back: they are exported as before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.config.run_config import RunConfig
from tests.helpers.families import family_config
from tests.helpers.hf import randomise, save, tokenizer_for, value
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, whole_state

VOCABULARY = 390


def _config(family: str) -> RunConfig:
    tree = family_config(family, model={"vocabulary": VOCABULARY}).model_dump(mode="json")
    objective = {"name": "text_to_text", "prefix": "say: ", "sequence_length": 24}
    return RunConfig.model_validate(tree | {"objective": objective})


def _there_and_back(family: str, tokenizer: Path, directory: Path) -> Any:
    """(differences at both gates, the imported config, the weights that came back)."""
    from pretrain.evaluate.opening import build_empty, build_scorer
    from pretrain.interop.hf.export import export
    from pretrain.interop.hf.imports import import_hf, read_config

    config = _config(family)
    engine = build_engine(config)
    randomise(engine)
    checkpoint, exported = save(engine, config, tokenizer, directory / "checkpoints"), directory / "hf"
    there = export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    imported = read_config(exported, directory / "run")
    lengths = {"sequence_length": config.model.sequence_length, "target_length": config.model.target_length}
    imported = imported.model_copy(update={"model": imported.model.model_copy(update=lengths)})
    empty = build_empty(imported)
    back = import_hf(exported, imported, empty, lambda warning: None)
    return there.difference, back.difference, imported, whole_state(empty)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_model_tuned_on_texts_goes_to_hugging_face_and_back(family: str, tmp_path: Path) -> None:
    there, back, imported, weights = run_ranks(1, _there_and_back, family, tokenizer_for(family, tmp_path), tmp_path)[0]
    assert max(there, back) <= 1e-4
    assert imported.model.family == family
    for name, found in weights.items():
        expected = value(name.removeprefix("model/"), found.shape)
        if "word_embeddings" in name or "output_layer" in name:
            expected[VOCABULARY:] = 0
        assert np.array_equal(found, expected), name
