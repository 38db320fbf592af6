"""Pages of docs/ that show Python or commands: what they show works."""

import os
import re
from pathlib import Path

from tests.helpers.ranks import run_ranks

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _examples(directory: Path, page: str) -> list[str]:
    os.chdir(directory)
    names: dict[str, object] = {}
    for number, example in enumerate(PYTHON.findall((ROOT / "docs" / page).read_text(encoding="utf-8")), 1):
        exec(compile(example, f"{page}, example {number}", "exec"), names)
    return sorted(names)


def test_the_examples_of_the_python_api_run_one_after_the_other(
    dataset: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    for name, target in {"configs": ROOT / "configs", "datasets/book": dataset, "runs/book": uninterrupted}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(target)
    (names,) = run_ranks(1, _examples, tmp_path, "python.md")
    assert {"config", "dataset", "batch", "held_out", "text", "result"} <= set(names)
