"""Datasets damaged at random: a DataError that names the file, or the result as it was."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.dataset.dataset import Dataset
from data_pipeline.dataset.manifest import MANIFEST, SPLITS
from data_pipeline.errors import DataError
from tests.helpers.damaged import contents


def _mutation(data: bytes, draw: random.Random) -> bytes:
    kind, place = draw.randrange(4), draw.randrange(len(data))
    if kind == 0:
        return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
    if kind == 1:
        return data[:place] + draw.randbytes(draw.randrange(1, 20)) + data[place + 19 :]
    if kind == 2:
        return data[:place]
    return data[:place] + data[place + draw.randrange(1, 100) :]


@pytest.mark.parametrize("name", [MANIFEST, "train-00000.tar", "validation-00000.tar", "unigram.npy"])
def test_random_damage_is_an_error_or_changes_nothing(whole: Dataset, copy: Path, name: str) -> None:
    draw, expected = random.Random(name), contents(whole.directory, verify=True)
    data = (copy / name).read_bytes()
    errors = []
    for _ in range(75):
        (copy / name).write_bytes(_mutation(data, draw))
        try:
            assert contents(copy, verify=True) == expected
        except DataError as error:
            errors.append(str(error))
    assert len(errors) > 60
    assert all(name.split(".")[0] in error for error in errors)


def test_random_damage_without_verify_is_never_another_error(copy: Path) -> None:
    """Tokens may then be others, as nothing compares them."""
    path, draw = copy / "train-00000.tar", random.Random(1)
    data = path.read_bytes()
    shard = Dataset(copy).manifest.splits["train"].shards[0]
    errors = []
    for _ in range(75):
        begin, end = shard.head(draw.randrange(len(shard.members)), 2)
        place = draw.randrange(begin, end)
        path.write_bytes(data[:place] + draw.randbytes(1) + data[place + 1 :])
        try:
            contents(copy, verify=False)
        except DataError as error:
            errors.append(str(error))
    assert len(errors) > 10
    assert all("train-00000.tar" in error for error in errors)


def test_random_damage_of_the_numbers_in_a_manifest_without_checksum(copy: Path) -> None:
    """No identity covers places and counts: whatever they say, reading stays inside and ends in a DataError at most."""
    draw, errors = random.Random(2), []
    values = json.loads((copy / MANIFEST).read_text())
    del values["checksum"]
    for _ in range(75):
        damaged = json.loads(json.dumps(values))
        place: Any = damaged["splits"][draw.choice(SPLITS)]["shards"][0]
        place = draw.choice([place, place["members"][-1]])
        key = draw.choice([key for key, value in place.items() if isinstance(value, int)])
        place[key] = draw.choice([0, 1, -1, 2**31, 2**63, 2**64, place[key] + 1, place[key] - 1, place[key] * 2])
        (copy / MANIFEST).write_text(json.dumps(damaged))
        try:
            contents(copy, verify=False)
        except DataError as error:
            errors.append(str(error))
    assert len(errors) > 60
    assert all("manifest.json" in error or ".tar" in error for error in errors)
