"""The pages of reports, and what their templates know of scores."""

from pathlib import Path
from typing import Any

from pretrain.evaluate.report.metrics import score_text
from pretrain.pages.page import environment

_HERE = Path(__file__).parent


def page(template: str, **values: Any) -> str:
    """`template`, a file of this folder, with its values."""
    environment(_HERE).filters["score"] = score_text
    return environment(_HERE).get_template(template).render(**values)
