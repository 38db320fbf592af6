"""What was measured of each exhibit: `results.json`, which `python -m tests.museum` writes."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tests.museum.exhibit import Exhibit, Finding

PATH = Path(__file__).with_name("results.json")
Results = Mapping[str, Finding | None]
"""by the exhibit's name; None: missed"""


def measure(exhibit: Exhibit, folder: Path) -> Finding | None:
    """Plants the fault and runs the tool. Returns what it says of the fault, None if it says nothing that names it."""
    return exhibit.finder.expected(exhibit.finder.examine(exhibit.plant, folder))


def read() -> dict[str, Finding | None]:
    recorded = json.loads(PATH.read_text(encoding="utf-8"))
    return {name: None if found is None else Finding(**found) for name, found in recorded.items()}


def write(results: Results) -> None:
    content = {name: None if found is None else asdict(found) for name, found in sorted(results.items())}
    PATH.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
