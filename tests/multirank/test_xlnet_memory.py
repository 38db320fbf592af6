"""XLNet's memory: rows continue the first half of the text of those before them, and half of them is read backwards.
Loss and gradients are transformers', layouts agree, and lanes of both directions are read in order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.loader import SampleStream
from data_pipeline.recipes.permuted import Permuted
from data_pipeline.tokenizers.specials import Specials
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from tests.helpers.breadth import slow
from tests.helpers.datasets import build_dataset, make_documents
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise, with_weights_of
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import ROWS, build_engine, whole_state

STEPS, TOLERANCE = 3, 1e-5
SPECIALS = Specials(pad=0, cls=1, sep=2, mask=-1, start=0, end=2, sentinels=(), vocabulary=250)
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2pp2": {"tensor": 2, "pipeline": 2},
    "dp4+recompute+zero1": {"recompute": "full", "zero": 1},
    "tp2dp2+selective": {"tensor": 2, "recompute": "selective"},
    "pp2dp2+zero3": {"pipeline": 2, "zero": 3, "zero_engine": "deepspeed"},
}
QUICK = ("tp2pp2", "dp4+recompute+zero1")


def _config(memory: int, **sections: Any) -> RunConfig:
    return family_config("xlnet", model={"memory_length": memory, **sections.pop("model", {})}, **sections)


def _with_transformers(memory: int) -> Any:
    """(our losses, theirs, our gradients, theirs) of three steps, the gradients those of the last. The rows of the
    second half are read backwards."""
    import torch
    import torch.nn.functional as F

    from pretrain.interop.hf.hf_answers import hf_inputs, text_length

    config = _config(memory)
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"clip_norm": 0.0})})
    engine = build_engine(config)
    randomise(engine)
    theirs, links = with_weights_of(engine, config, SPECIALS)
    body = theirs.transformer
    body.mem_len, body.reuse_len, body.bi_data = memory, config.objective.advance(config.sequence_length), True
    engine.keeps_gradients = True
    stream, mems, losses = SyntheticStream(config), None, []
    backward = np.where(np.arange(ROWS) < ROWS // 2, 1, -1)[:, None]
    for step in range(STEPS):
        batch = stream.batch(step * ROWS, ROWS, 0, 1)
        assert batch.before is not None
        assert batch.positions is not None
        assert batch.order is not None
        assert (batch.before == step * 12).all()
        result = engine.train_step(replace(batch, positions=batch.positions * backward), 0.0, step + 1)
        outputs = theirs(**hf_inputs(theirs, batch), mems=mems, use_mems=True)
        labels = torch.from_numpy(batch.labels[:, text_length(batch.order) :]).contiguous()
        loss = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())
        mems = outputs.mems
        losses.append((result.loss_sum / result.token_count, loss.item()))
    loss.backward()
    named, ours, expected = dict(theirs.named_parameters(remove_duplicate=False)), {}, {}
    parts = engine.gradients()
    for link in links:
        (own,) = link.mcore_names
        for name, gradient in zip(link.hf_names, link.out(parts[f"gradient/{own}"].pieces[0].value), strict=True):
            if named[name].grad is not None:
                ours[name], expected[name] = gradient.clone().numpy(), named[name].grad.numpy()
    return losses, ours, expected


@pytest.mark.parametrize("memory", [20, slow(12), slow(7)])
def test_loss_and_every_gradient_are_those_of_transformers_after_two_rows(memory: int) -> None:
    losses, ours, expected = run_ranks(1, _with_transformers, memory)[0]
    for own, their in losses:
        assert own == pytest.approx(their, abs=1e-5)
    assert len(ours) > 20
    largest = max(np.abs(value).max() for value in expected.values())
    for name, gradient in expected.items():
        assert np.abs(ours[name] - gradient).max() <= 1e-4 * np.abs(gradient).max() + 1e-6 * largest, name


def _curves(parallels: list[dict[str, Any]], memory: int) -> list[Any]:
    found = []
    for parallel in parallels:
        model = {"dropout": 0.1, "attention_dropout": 0.1, "init": {"std": 0.1}}
        engine = build_engine(_config(memory, model=model, parallel=parallel))
        curve = train_family(engine, range(1, STEPS + 1))
        found.append((curve, {n: value for n, value in whole_state(engine).items() if n.startswith("memory/")}))
        meet_again()
    return found


def _compare(layouts: dict[str, dict[str, Any]]) -> None:
    ((expected, kept),) = run_ranks(1, _curves, [{}], 20)[0]
    assert kept["memory/encoder.layers.0"].shape == (ROWS, 20, 64)
    found = dict(zip(layouts, run_ranks(4, _curves, list(layouts.values()), 20)[0], strict=True))
    for name, (curve, state) in found.items():
        assert np.abs(np.array(curve) - np.array(expected)).max() <= TOLERANCE, name
        assert state.keys() == kept.keys()
        assert all(np.abs(state[layer] - kept[layer]).max() <= 1e-3 for layer in kept), name
    ((without, _),) = run_ranks(1, _curves, [{}], 0)[0]
    assert np.abs(np.array(without) - np.array(expected))[1:].max() > 100 * TOLERANCE, "memory is at work"


def test_memory_is_the_same_on_every_layout() -> None:
    _compare({name: LAYOUTS[name] for name in QUICK})


@pytest.mark.slow
def test_memory_is_the_same_on_more_layouts() -> None:
    _compare({name: layout for name, layout in LAYOUTS.items() if name not in QUICK})


def test_lanes_are_read_in_order_in_both_directions(tmp_path: Path) -> None:
    """Each row begins where the first half of the one before it ended: half of the lanes read the text backwards."""
    dataset = Dataset(build_dataset(make_documents(3, 300), tmp_path).directory)
    lanes, half = 6, 12
    recipe = Permuted(bi_data=True).recipe(dataset.tokenizer(), 2 * half + 8)
    stream = SampleStream([(dataset.directory, 1.0)], recipe, 7, lanes=lanes)
    of_lane = stream.num_samples[0] // lanes
    whole = dataset.window("train", 0, dataset.num_tokens("train"))
    assert of_lane > 3
    for turn in (0, 1, 2, of_lane - 1, of_lane, of_lane + 1):
        batch = stream.batch(turn * lanes, lanes)
        assert batch.before is not None
        assert batch.positions is not None
        assert (batch.before == turn % of_lane * half).all()
        for lane in range(lanes):
            text = whole if lane < lanes // 2 else whole[::-1]
            start = (lane % (lanes // 2) * of_lane + turn % of_lane) * half
            assert np.array_equal(batch.tokens[lane, :half], text[start : start + half]), (turn, lane)
            assert (batch.positions[lane, 1] > 0) == (lane < lanes // 2)
