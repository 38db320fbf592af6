"""Fine-tuning beside a training loop of transformers and torch with the same weights and rows: the same losses step by
step without dropout, and the same distribution of losses with it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers.breadth import only
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine

STEPS, RATE, DRAWS = 12, 1e-3, 400
CASES = [(family, name) for family in ("bert", "albert", "roberta", "gpt") for name in ("classification", "tagging")]


def _both(family: str, objective: str, **sections: dict[str, Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
    """(engine, model of transformers, rows, what that model reads of the rows)."""
    from pretrain.interop.hf.gate import head_rows_for
    from pretrain.interop.hf.heads import with_head
    from pretrain.interop.hf.hf_answers import hf_inputs
    from pretrain.interop.hf.registry import hf_family_of
    from tests.helpers.hf import randomise
    from tests.multirank.test_hf_heads import SPECIALS, VOCABULARY, head_config, rows_with_labels

    config = head_config(family, objective)
    for name, section in sections.items():
        config = config.model_copy(update={name: getattr(config, name).model_copy(update=section)})
    engine = build_engine(config)
    randomise(engine)
    model = config.model
    hf_family = with_head(hf_family_of(model), config.objective, VOCABULARY - 1 if model.is_causal else None)
    state, weights = engine.state(), {}
    theirs = hf_family.class_of(model)(hf_family.hf_config(model, SPECIALS))
    for link in hf_family.links(model):
        values = [state[f"model/{name}"].pieces[0].value for name in link.mcore_names]
        weights |= dict(zip(link.hf_names, (x.clone() for x in link.out(*values)), strict=True))
    theirs.load_state_dict(weights, strict=False)
    rows, answers = rows_with_labels(config, head_rows_for(config, theirs.config))
    return engine, theirs, rows, hf_inputs(theirs, rows, model.position_offset) | answers


def _losses(family: str, objective: str) -> tuple[list[float], list[float]]:
    """(ours, theirs) of each step, on rows whose labels change from step to step."""
    import torch
    from transformers import Trainer

    adam = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0}
    engine, theirs, rows, inputs = _both(
        family, objective, optimizer=adam, model={"dropout": 0.0, "attention_dropout": 0.0}
    )
    theirs.eval()  # GPT-2's class has a dropout of its own
    for name, value in theirs.named_parameters():  # RoBERTa's one segment, which ours does not distinguish
        value.requires_grad_(engine.config.model.segments > 0 or "token_type" not in name)
    decayed = set(Trainer.get_decay_parameter_names(None, theirs))  # type: ignore[arg-type]
    trained = {name: value for name, value in theirs.named_parameters() if value.requires_grad}
    groups = [
        {"params": [value for name, value in trained.items() if name in decayed], "weight_decay": 0.1},
        {"params": [value for name, value in trained.items() if name not in decayed], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8)
    ours, expected = list[float](), list[float]()
    outputs = theirs.config.num_labels
    for step in range(1, STEPS + 1):
        rate = RATE * (STEPS + 1 - step) / STEPS
        labels = np.where(rows.loss_mask > 0, (rows.labels + step) % outputs, 0)
        kept = (inputs["labels"] + step) % outputs
        inputs_now = inputs | {"labels": torch.where(inputs["labels"] < 0, inputs["labels"], kept)}
        result = engine.train_step(replace(rows, labels=labels), rate, step)
        ours.append(result.loss_sum / result.token_count)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = theirs(**inputs_now).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    return ours, expected


def _drawn_losses(family: str, objective: str) -> tuple[list[float], list[float]]:
    """(ours, theirs) of the same weights and rows, each with another dropout."""
    import torch

    engine, theirs, rows, inputs = _both(family, objective, model={"dropout": 0.1, "attention_dropout": 0.1})
    ours = [engine.train_step(rows, 0.0, step) for step in range(1, DRAWS + 1)]
    torch.manual_seed(0)
    theirs.train()
    with torch.no_grad():
        expected = [theirs(**inputs).loss.item() for _ in range(DRAWS)]
    return [result.loss_sum / result.token_count for result in ours], expected


@pytest.mark.parametrize(("family", "objective"), only([("bert", "classification"), ("gpt", "tagging")], CASES))
def test_a_fine_tuning_run_has_the_losses_of_transformers_step_by_step(family: str, objective: str) -> None:
    """Learning rates, clipping, AdamW and what decays."""
    ours, expected = run_ranks(1, _losses, family, objective)[0]
    assert max(expected) - min(expected) > 0.1, "the steps change something"
    assert ours == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "objective"),
    only([("bert", "classification")], [case for case in CASES if case[0] in ("bert", "roberta")]),
)
def test_dropout_changes_losses_as_in_transformers(family: str, objective: str) -> None:
    """Dropout at another place, or at another rate, would change their mean or their spread. Not of ALBERT, whose class
    there has none behind the feed-forward layer, and not of GPT-2, whose class for tags has one of its own."""
    ours, expected = (np.array(losses) for losses in run_ranks(1, _drawn_losses, family, objective)[0])
    error = np.sqrt((ours.var() + expected.var()) / DRAWS)
    assert abs(ours.mean() - expected.mean()) <= 4 * error
    assert ours.std() / expected.std() == pytest.approx(1, abs=4 / np.sqrt(DRAWS))
