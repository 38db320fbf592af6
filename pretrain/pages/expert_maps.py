"""Heat maps of the tokens of each expert, by layer, at the newest step that counted them."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from pretrain.pages.run_curves import ExpertCounts, layer_name, loads
from pretrain.run_dir.experts import IDLE_LOAD

_MOST_LAYERS_NAMED = 12


def draw_experts(axes: Axes, experts: ExpertCounts, of_run: str) -> None:
    """A row for each layer and a column for each expert, coloured by its load as a multiple of the mean."""
    loads_LE = loads(experts)
    norm: Any = LogNorm(IDLE_LOAD, 1 / IDLE_LOAD)  # the mean is in the middle
    image = axes.imshow(loads_LE.clip(IDLE_LOAD), cmap="RdBu_r", norm=norm, aspect="auto", interpolation="nearest")
    axes.set_title(f"load of experts at step {experts.step:,}{of_run}")
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    axes.grid(visible=False)
    names = [layer_name(layer) for layer in experts.counts]
    shown = range(0, len(names), math.ceil(len(names) / _MOST_LAYERS_NAMED))
    axes.set_yticks(list(shown), [names[number] for number in shown], fontsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bar = axes.figure.colorbar(image, ax=axes, ticks=[IDLE_LOAD, 1, 1 / IDLE_LOAD], label="multiple of the mean")
    bar.ax.set_yticklabels([f"≤ {IDLE_LOAD:g}", "1", f"≥ {1 / IDLE_LOAD:g}"])
    bar.ax.minorticks_off()
