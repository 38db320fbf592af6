"""Modules that predict further tokens, to Hugging Face and back: to the same bits, and with the losses of transformers'
own modules, which read the exported layers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretrain.checkpoint.state import scoring_config
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.errors import ConfigError
from pretrain.evaluate.opening import build_empty, build_scorer
from pretrain.interop.hf.export import export
from tests.helpers.families import family_config
from tests.helpers.hf import randomise, read_json, save, tokenizer_for, value
from tests.helpers.hf_folders import changed, tensors
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import ROWS, build_engine, whole_state

VOCABULARY = 390


def _config(family: str, depths: int, parallel: dict[str, Any]) -> RunConfig:
    mtp = {"num_layers": depths, "loss_scaling_factor": 0.3}
    model = {"vocabulary": VOCABULARY, "mtp": mtp, "positions": {"name": "rotary", "interleaved": True}}
    return family_config(family, model=model, parallel=parallel)


def _write(family: str, depths: int, tokenizer: Path, directory: Path) -> dict[str, float]:
    """Terms of a step, before a checkpoint of the weights that made it is saved by four ranks."""
    config = _config(family, depths, {"tensor": 2, "pipeline": 2})
    engine = build_engine(config)
    randomise(engine)
    save(engine, config, tokenizer, directory)
    batch = SyntheticStream(config).batch(0, ROWS, engine.data_rank, engine.data_world)
    result = engine.train_step(batch, 0.0, 1)
    return {name: total / count for name, (total, count) in result.terms.items() if not name.startswith("router")}


def _there_and_back(checkpoint: Path, exported: Path, root: Path) -> Any:
    """(the model that came back, weights, warnings, and sentences that refuse changed folders)."""
    from pretrain.interop.hf.imports import import_hf, read_config

    config = scoring_config(checkpoint, [], one_rank=True)
    assert config.model.mtp is None
    export(checkpoint, config, exported, lambda: build_scorer(config, checkpoint))
    meet_again()
    imported, warnings = read_config(exported, root / "run"), list[str]()
    engine = build_empty(imported)
    import_hf(exported, imported, engine, warnings.append)
    weights = whole_state(engine)
    layer = f"model.layers.{config.model.layers}."
    refused = []
    for name, change in (
        (f"{layer}embed_tokens.weight", lambda x: x + 1),
        (f"{layer}enorm.weight", lambda x: x * torch.nan),
        (f"{layer}hnorm.weight", lambda x: x[:-1]),
    ):
        edit = tensors(lambda values, name=name, change=change: values.update({name: change(values[name])}))
        folder = changed(exported, root / name, edit)
        try:
            wrong = read_config(folder, root / f"run-{name}")
            import_hf(folder, wrong, build_empty(wrong), warnings.append)
        except ConfigError as error:
            refused.append(str(error))
    return imported.model, weights, warnings, refused


def _losses_of_transformers(exported: Path, config: RunConfig) -> list[float]:
    """Means of the losses of next tokens and of each depth."""
    from transformers import DeepseekV3ForCausalLM
    from transformers.modeling_layers import MtpModel

    main = DeepseekV3ForCausalLM.from_pretrained(exported, attn_implementation="eager", experts_implementation="eager")
    batch = SyntheticStream(config).batch(0, ROWS, 0, 1)
    text = torch.cat((torch.tensor(batch.tokens), torch.tensor(batch.labels[:, -1:])), dim=1)
    length = batch.tokens.shape[1]
    positions = torch.arange(length).expand(ROWS, -1)
    behind = range(config.model.layers, config.model.layers + main.config.num_mtp_layers)
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{number}\." for number in behind]  # which it reads
    further = MtpModel.from_pretrained(main).eval()
    with torch.no_grad():
        states = main.eval().model(text[:, :-1]).last_hidden_state
        found = [_cross_entropy(main.lm_head(states), text[:, 1:])]
        for depth in range(1, len(further.layers) + 1):
            reads = F.pad(text[:, depth : depth + length], (0, depth - 1))
            states = further.forward_layer(depth - 1, states, positions, None, input_ids=reads)
            found.append(_cross_entropy(main.lm_head(states), text[:, depth + 1 :]))
    return found


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return float(F.cross_entropy(logits[:, : labels.shape[1]].flatten(0, 1), labels.flatten()))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "depths"), [("deepseek_v3", 1), ("deepseek_v3", 2), ("latent", 1)])
def test_modules_go_to_hugging_face_and_back(family: str, depths: int, tmp_path: Path) -> None:
    terms = run_ranks(4, _write, family, depths, tokenizer_for(family, tmp_path), tmp_path / "checkpoints")[0]
    exported, config = tmp_path / "hf", _config(family, depths, {})
    checkpoint = tmp_path / "checkpoints" / "step-00000000"
    model, weights, warnings, refused = run_ranks(1, _there_and_back, checkpoint, exported, tmp_path)[0]
    assert model.mtp.num_layers == read_json(exported / "config.json")["num_nextn_predict_layers"] == depths
    assert not warnings
    assert {name for name in weights if name.startswith("model/mtp.")}
    for name, found in weights.items():
        expected = value(name.removeprefix("model/"), found.shape)
        if "word_embeddings" in name or "output_layer" in name:  # rows that pad the vocabulary come back as zeros
            expected[VOCABULARY:] = 0
        assert np.array_equal(found, expected), name
    for sentence, part in zip(
        refused, ("is another tensor than", "no finite numbers", "config.json makes it"), strict=True
    ):
        assert part in sentence
    if model.experts is not None:  # which transformers' modules have in any case
        assert list(terms.values()) == pytest.approx(_losses_of_transformers(exported, config), abs=1e-4)
