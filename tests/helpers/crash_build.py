"""`pretrain data build`, killed at random moments and started again: the dataset of an uninterrupted build, or none.

kills = build_campaign(directory, kills=12, seed=1)
"""

import time
from pathlib import Path
from random import Random

from data_pipeline.dataset.dataset import Dataset
from tests.helpers import command, crash
from tests.helpers.crash import CORES, Files, Kill, Moment, contents, files, statuses
from tests.helpers.prose import prose

PHASES = ("starting up", "reading", "encoding", "writing shards", "publishing", "published")
_ARGUMENTS = ["data", "build", str(Path("configs/data/text.yaml").resolve()), "input=../text.txt", "output=dataset"]
_ARGUMENTS += ["validation_fraction=0.1", "member_tokens=10000", "shard_tokens=50000"]
_TOKENIZER = "tokenizer.vocabulary=400"
_ARGUMENTS += ["piece_bytes=100000"]
_SCRATCH = ".dataset.building"
_LIMIT_S = 120.0


def build(directory: Path, tokenizer: str = _TOKENIZER) -> float:
    """Builds `directory / "dataset"`, undisturbed, from a text beside `directory`. Returns the seconds it took."""
    directory.mkdir()
    (directory.parent / "text.txt").write_text("\n\n".join(prose()), encoding="utf-8")
    began = time.monotonic()
    assert statuses(command.start([*_ARGUMENTS, tokenizer], 1, directory, directory / "log"), _LIMIT_S) == [0]
    return time.monotonic() - began


def build_campaign(directory: Path, kills: int, seed: int) -> list[Kill]:
    """Kills builds at least `kills` times. Raises AssertionError if the output is ever anything but absent or whole, or
    not the bytes of an uninterrupted build in the end."""
    seconds = build(directory / "uninterrupted")
    expected = contents(directory / "uninterrupted" / "dataset")
    moments = [
        Moment(lambda before, now: True, 1.2 * seconds),
        Moment(lambda before, now: _SCRATCH in now, 0.02),
        Moment(_writing, 0.0),
        Moment(lambda before, now: f"{_SCRATCH}/output/manifest.json" in now, 0.005),
        Moment(lambda before, now: "dataset" in now, 0.0),
    ]

    def case(number: int, kills: int) -> list[Kill]:
        return _case(directory / f"build-{number:03d}", kills, moments, expected, Random(f"{seed}/{number}"))

    return crash.run_cases(case, kills)


def _case(
    directory: Path, most: int, moments: list[Moment], expected: dict[str, bytes], random: Random
) -> list[Kill]:  # fmt: skip
    directory.mkdir()
    output, log = directory / "dataset", directory / "log"
    kills: list[Kill] = []
    try:
        while len(kills) < most and not output.exists():
            with CORES:
                before = files(directory)
                processes = command.start([*_ARGUMENTS, _TOKENIZER], 1, directory, log)
                found = crash.kill(
                    processes, [0], random.choices(moments, (3, 1, 1, 1, 1))[0], directory, before, random
                )
                status = statuses(processes, _LIMIT_S)
            if found is None:
                assert status == [0], "an undisturbed build failed"
            else:
                kills.append(Kill("one process", "it", _phase(before, found)))
            if output.exists():
                Dataset(output).verify()
                assert contents(output) == expected, "half a dataset under its name"
        with CORES:
            assert statuses(command.start([*_ARGUMENTS, _TOKENIZER], 1, directory, log), _LIMIT_S) == [0]
        left = sorted(p.name for p in directory.iterdir())
        assert left == ["dataset", "log"], f"something is left behind: {left}"
        differing = [name for name, _ in contents(output).items() ^ expected.items()]
        assert not differing, f"{differing} differ from an uninterrupted build's"
    except Exception as error:
        crash.explain(error, directory, log)
        raise
    return kills


def _writing(before: Files, now: Files) -> bool:
    return any(".tar" in path for path in crash.changed(before, now))


def _phase(before: Files, now: Files) -> str:
    if "dataset" in now:
        return "published"
    touched = crash.changed(before, now)
    if f"{_SCRATCH}/output/manifest.json" in touched:
        return "publishing"
    if _writing(before, now):
        return "writing shards"
    if any(path.startswith(f"{_SCRATCH}/encoding") for path in touched):
        return "encoding"
    return "reading" if f"{_SCRATCH}/identity" in touched else "starting up"
