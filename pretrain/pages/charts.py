"""Charts as SVG inside a page: their common style."""

import io
import re
from typing import Any

from matplotlib.figure import Figure

INK, BLUE, ORANGE, _FAINT = "#374151", "#2563eb", "#ea580c", "#d1d5db"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "report",  # the same ids for the same chart
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#f3f4f6",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def svg(figure: Figure) -> str:
    """The chart as an SVG element that needs nothing from outside."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    text = re.sub('<g id="[^"]*"', "<g", text[text.index("<svg") :])  # groups of several charts have the same names
    return re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)  # a page's own parser needs none, and nothing looks like a link
