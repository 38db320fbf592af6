"""`pretrain verify` finds a fault in scoring that the reference and every layout share."""

import json
import os
from pathlib import Path

import pytest
import torch.distributed as dist

from pretrain.__main__ import main
from pretrain.config.load import dump
from tests.helpers import hidden_faults
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.planted import Fault
from tests.helpers.ranks import run_ranks


def _statuses(config: Path, planted: list[tuple[Path, Fault | None]]) -> list[int]:
    """Exit statuses of one `pretrain verify` per fault; the fault is active from beginning to end."""
    dist.destroy_process_group()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]  # as a user calls it
    found = []
    for out, fault in planted:
        with pytest.MonkeyPatch.context() as patch:
            if fault is not None:
                fault(patch)
            found.append(main(["verify", str(config), "--layouts", "tp1", "--steps", "1", "--out", str(out)]))
    return found


@pytest.mark.slow
def test_scores_that_are_wrong_alike_everywhere_depart(tmp_path: Path) -> None:
    """The caps are as wide as Gemma 2's, with dropout and a term of the loss that are not the scores'."""
    caps = {"attention_logit_softcap": 50.0, "final_logit_softcap": 30.0, "dropout": 0.1}
    config = tmp_path / "config.yaml"
    config.write_text(dump(family_config("gemma2", model=FAMILIES["gemma2"]["model"] | caps)))
    faults: list[Fault | None] = [
        None,
        hidden_faults.caps_in_training_alone,
        hidden_faults.scores_of_another_temperature,
    ]
    planted = [(tmp_path / f"{number}.json", fault) for number, fault in enumerate(faults)]
    assert run_ranks(1, _statuses, config, planted) == [[0, 1, 1]]
    reports = [json.loads(out.read_text()) for out, _ in planted]
    assert [report["same"] for report in reports] == [True, False, False]
    assert all(layout["same"] for report in reports for layout in report["layouts"]), "layouts are alike"
    sound, capped, warm = (report["scoring"] for report in reports)
    assert max(sound["log_softmax"], sound["training_loss"]) < sound["rounding_explains"] / 5
    assert capped["training_loss"] > 10 * capped["rounding_explains"]
    assert warm["log_softmax"] > 10 * warm["rounding_explains"]
