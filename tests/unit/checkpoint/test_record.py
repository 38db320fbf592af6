"""record.json of a checkpoint: whatever stands in it, reading it ends with the record or with one sentence."""

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pretrain.checkpoint.state import Record, check_same_run, scoring_config
from pretrain.errors import ConfigError, RunError
from pretrain.observe.spikes import Recent
from tests.helpers.tiny import record as tiny_record
from tests.helpers.tiny import tiny_config

NONSENSE = ["word", None, 1e308, -1, 10**30, 2**62, 1.5, True, [], {}, [1, 2], {"a": {"b": []}}, "", "\0", "x" * 10_000]


def tree() -> dict[str, Any]:
    return json.loads(tiny_record(3).encode())


def read(values: dict[str, Any], directory: Path) -> Record:
    path = directory / "record.json"
    path.write_text(json.dumps(values))
    return Record.read(path)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = tiny_record(3)
    assert asdict(read(json.loads(record.encode()), tmp_path)) == asdict(record)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("step", "updates", "tokens") for value in ("x", None, 1e308, -1, 10**30, 1.5)),
        *(("cursor", {"samples": value, "fingerprint": "f"}) for value in ("x", None, 1e308, -1, 10**30, True)),
        ("cursor", {"samples": 1}),
        ("cursor", {"samples": 1, "fingerprint": None}),
        *(("loss_scale", value) for value in ([0, 1], [-1.0, 1], [1.0, -1], [1.0], ["x", 1], 3)),
        *(("recent", {"losses": [value], "grad_norms": []}) for value in ("x", None, True)),
        ("recent", {"losses": 3}),
        ("recent", [1.0]),
        ("updates", 4),
        ("config", []),
        ("versions", {"torch": 2}),
        ("layout", None),
    ],
)
def test_numbers_that_no_run_has_are_a_sentence_that_names_the_file(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"record\.json") as refused:
        read(tree() | {key: value}, tmp_path)
    assert len(str(refused.value)) < 500


def test_what_the_next_step_is_judged_by_is_read_back_and_finite(tmp_path: Path) -> None:
    recent = Recent((3.1, 2.0, 0.1 + 0.2), (1e-9,))
    assert read(json.loads(replace(tiny_record(3), recent=recent).encode()), tmp_path).recent == recent
    without = {key: value for key, value in tree().items() if key != "recent"}
    assert read(without, tmp_path).recent is None
    with pytest.raises(RunError, match=r"recent"):
        read(tree() | {"recent": {"losses": [float("nan")], "grad_norms": []}}, tmp_path)


def test_infinite_loss_scales_are_refused(tmp_path: Path) -> None:
    for value in (float("inf"), float("nan")):
        with pytest.raises(RunError, match=r"record\.json"):
            read(tree() | {"loss_scale": [value, 1]}, tmp_path)


@pytest.mark.parametrize("samples", [25, 0])
def test_samples_and_tokens_that_do_not_go_together_are_refused(samples: int) -> None:
    record = replace(tiny_record(3), cursor={"samples": samples, "fingerprint": "f"})
    with pytest.raises(RunError, match=f"tokens in {samples} samples"):
        check_same_run(record, tiny_config())


@pytest.mark.parametrize(("before", "now"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_moments_may_be_held_in_another_precision_from_now_on(before: str, now: str) -> None:
    started, resumed = (
        tiny_config(optimizer={"moments": moments}, schedule={"name": "constant"}) for moments in (before, now)
    )
    record = replace(tiny_record(3), config=started.model_dump(mode="json"))
    check_same_run(record, resumed)
    other = resumed.model_copy(update={"optimizer": resumed.optimizer.model_copy(update={"beta2": 0.9})})
    with pytest.raises(ConfigError, match=r"started with optimizer\.beta2=0\.95"):
        check_same_run(record, other)


@pytest.mark.parametrize("seed", range(4))
def test_any_field_may_hold_anything(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        values = tree()
        where = values
        for _ in range(chance.randrange(4)):
            inner = [value for value in where.values() if isinstance(value, dict) and value]
            where = chance.choice(inner) if inner else where
        where[chance.choice(list(where))] = chance.choice(NONSENSE)
        said = refusal(values, tmp_path)
        assert not said or any(word in said for word in ("record.json", "this run was started with", "train was"))
        assert len(said) < 1500


def refusal(values: dict[str, Any], directory: Path) -> str:
    """What is said of a record by those who read it; nothing if it is good."""
    try:
        record = read(values, directory)
        scoring_config(directory, [], one_rank=True)
        check_same_run(record, tiny_config())
    except (ConfigError, RunError) as error:
        return str(error)
    return ""
