"""Maximal update parametrization as it runs: nothing at the base's width, the same run on every layout, and in
transformers' classes, which lack its multipliers."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.errors import RunError
from tests.helpers.breadth import slow
from tests.helpers.families import family_config, train_family
from tests.helpers.hf import randomise, save, tokenizer_for
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import VOCABULARY, build_engine, tiny_config, train, whole_state

MUP = {"base_width": 16, "input_multiplier": 2.0, "output_multiplier": 3.0}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "tensor 2 + sequence": (2, {"tensor": 2, "sequence": True}),
    "pipeline 2": (2, {"pipeline": 2}),
    "data 2, zero 1": (2, {"zero": 1}),
    "data 2, zero 2": (2, {"zero": 2, "zero_engine": "deepspeed"}),
    "data 2, zero 3": (2, {"zero": 3, "zero_engine": "deepspeed"}),
}
SOME = ["tensor 2 + sequence", "data 2, zero 3"]
OTHERS = [name for name in LAYOUTS if name not in ("one rank", *SOME)]


def _states(family: str, mups: list[Any]) -> list[Any]:
    """For each `model.mup`: the curve of three steps and the state after them."""
    found = []
    for mup in mups:
        engine = build_engine(family_config(family, model={"mup": mup}))
        found.append((train_family(engine, range(1, 4)), whole_state(engine)))
        meet_again()
    return found


@pytest.mark.parametrize("family", ["bert", slow("gemma"), slow("t5")])
def test_at_the_base_s_width_a_run_is_the_standard_one_to_the_bit(family: str) -> None:
    width = family_config(family).model.hidden
    ((standard, same, other),) = run_ranks(1, _states, family, [None, {"base_width": width}, {"base_width": 16}])
    assert same[0] == standard[0]
    for name, value in standard[1].items():
        np.testing.assert_array_equal(same[1][name], value, err_msg=name)
    assert other[0] != standard[0]


def _config(parallel: dict[str, Any]) -> RunConfig:
    optimizer = {"learning_rate": 4e-3, "eps": 1e-5, "weight_decay": 1.0}
    return tiny_config(model={"mup": MUP}, optimizer=optimizer, parallel=parallel)


def _runs(layouts: list[str]) -> list[Any]:
    found = []
    for layout in layouts:
        engine = build_engine(_config(LAYOUTS[layout][1]))
        found.append((train(engine, range(4)), whole_state(engine)))
        meet_again()
    return found


@pytest.mark.parametrize("names", [SOME, slow((OTHERS,))], ids=["some", "others"])
def test_it_is_the_same_run_on_every_layout(names: list[str]) -> None:
    ((alone, final),) = run_ranks(1, _runs, ["one rank"])[0]
    assert alone[-1][0] < alone[0][0] - 0.2, "it learns"
    for layout, (curve, state) in zip(names, run_ranks(2, _runs, names)[0], strict=True):
        np.testing.assert_allclose(np.array(curve)[:, 0], np.array(alone)[:, 0], rtol=0, atol=1e-5, err_msg=layout)
        for name, value in final.items():
            if name.startswith("model/") and not name.endswith("linear_qkv.bias"):
                np.testing.assert_allclose(state[name], value, rtol=0, atol=1e-5, err_msg=f"{layout}: {name}")


def _read() -> dict[str, list[np.ndarray]]:
    """Log probabilities of the tokens of a text: of the logits of all of it, of its scores, and read token by token."""
    found = {}
    for name, model in {"gpt": {"mup": MUP}, "t5": {"mup": MUP}}.items():
        config = tiny_config(model=model) if name == "gpt" else family_config(name, model=model)
        engine = build_engine(config, train=False)
        randomise(engine)
        tokens = np.random.default_rng(1).integers(0, VOCABULARY, (1, 16))
        labels, mask, read = tokens[:, 1:], np.ones((1, 15), np.float32), int(name == "gpt")
        if name == "gpt":
            rows = Rows(tokens[:, :-1], labels, mask)
        else:
            rows = Rows(tokens, labels, mask, decoder_tokens=tokens[:, :-1])
        whole = engine.logits(rows)[0][0].log_softmax(-1).numpy()[np.arange(15), labels[0]]
        # A decoder alone continues the text that it has read; behind an encoder it begins with its own first token.
        held = engine.prefill(tokens[:, :1].tolist() if read else tokens.tolist())
        decoded = [
            engine.next_tokens(held, np.array([0]), tokens[:, index])[0, tokens[0, index + 1]]
            for index in range(read, 15)
        ]
        found[name] = [whole[read:], engine.score(rows).log_probability[0, read:], np.array(decoded)]
        meet_again()
    return found


def test_scores_and_decoding_are_those_of_the_logits() -> None:
    for name, (whole, scored, decoded) in run_ranks(1, _read)[0].items():
        np.testing.assert_allclose(scored, whole, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(decoded, whole, atol=1e-4, err_msg=name)


EXPORTED: dict[str, dict[str, Any]] = {
    "gpt": {**MUP, "base_head_dim": 8},
    "gpt-post": MUP,
    "llama": {**MUP, "base_head_dim": 4},
    "mixtral": MUP,
    "gemma": {"base_width": 16, "input_multiplier": 2.0, "output_multiplier": 3.0},
    "t5": MUP,
    "t5v1.1": MUP,
    "bert": {"base_width": 16, "output_multiplier": 3.0},
    "bart": {"base_width": 16, "output_multiplier": 3.0, "base_head_dim": 4},
    "ctrl": {"base_width": 16, "output_multiplier": 3.0},
}


def _family(name: str, mup: Any) -> RunConfig:
    vocabulary = {"vocabulary": 390, "mup": mup}
    if name.startswith("gpt"):
        norm = "post" if name.endswith("post") else "pre"
        return tiny_config(model={**vocabulary, "attention": {}, "norm": norm})
    return family_config(name, model=vocabulary)


def _exported(names: list[str], root: Path, folds: bool = True) -> list[str]:
    """Returns what the gate says of each family, or its error."""
    from pretrain.evaluate.opening import build_scorer
    from pretrain.interop.hf import export as exports

    if not folds:
        exports.without_mup = lambda model: (model.model_copy(update={"mup": None}), {})
    found = []
    for name in names:
        config, directory = _family(name, EXPORTED[name]), root / name
        directory.mkdir()
        engine = build_engine(config)
        randomise(engine)
        checkpoint = save(engine, config, tokenizer_for(name, directory), directory / "checkpoints")
        scorer = partial(build_scorer, config, checkpoint)
        try:
            found.append(str(exports.export(checkpoint, config, directory / "hf", scorer)))
        except RunError as error:
            found.append(str(error))
        meet_again()
    return found


@pytest.mark.parametrize("names", [["gpt", "t5"], slow([name for name in EXPORTED if name not in ("gpt", "t5")])])
def test_transformers_computes_the_same_of_weights_that_take_the_multipliers_up(
    names: list[str], tmp_path: Path
) -> None:
    (found,) = run_ranks(1, _exported, names, tmp_path, timeout_s=300)
    assert all(message.startswith("largest logit difference") for message in found), found


def test_without_that_the_gate_does_not_pass(tmp_path: Path) -> None:
    ((message,),) = run_ranks(1, _exported, ["gpt"], tmp_path, False)
    assert message.startswith("not exported: logits differ")
