"""The pictures of README.md: a report, and a table of `pretrain verify`. Needs chromium (docs/make/browser.py).

pretrain verify configs/debug/gpt.yaml --layouts tp2,tp2+sp,pp2,tp2pp2,dp2+zero3 > verify.txt
python -m docs.make.pictures runs/book/reports/first/report.html verify.txt
"""

import html
import sys
from pathlib import Path

from docs.make.browser import screenshot

IMAGES = Path(__file__).parents[1] / "images"
_TERMINAL = """<!doctype html><meta charset="utf-8"><style>
    pre {{ margin: 0; padding: 18px 22px; color: #e5e7eb; background: #111827;
           font: 13px/1.6 "DejaVu Sans Mono", monospace }}
</style><body style="margin:0"><pre>{}</pre>"""


def main(report: Path, table: Path) -> None:
    """Reads a report.html and what `pretrain verify` printed; writes docs/images/."""
    IMAGES.mkdir(exist_ok=True)
    page = report.read_text(encoding="utf-8")
    screenshot(page, 1080, 1640, IMAGES / "report.png")
    screenshot(page, 390, 1400, IMAGES / "report-phone.png")
    lines = table.read_text(encoding="utf-8").rstrip().split("\n")
    columns = max(map(len, lines))
    width, height = round(44 + 7.83 * columns), round(36 + 20.8 * len(lines))
    screenshot(_TERMINAL.format(html.escape("\n".join(lines))), width, height, IMAGES / "verify.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
