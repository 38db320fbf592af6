"""Layers of experts that have collapsed, reported when it begins (`health.idle_experts`)."""

from collections.abc import Mapping, Sequence

from pretrain.run_dir.experts import idle_fraction


class IdleExperts:
    """Layers of which at least the fraction `most` of the experts is idle; None: none is looked for."""

    def __init__(self, most: float | None) -> None:
        self._most = most
        self._collapsed: set[str] = set()

    def newly(self, tokens_per_expert: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Layers that have collapsed since the counts before, and how many experts of each are idle; none in a step
        without counts."""
        if self._most is None or not tokens_per_expert:
            return {}
        found = {}
        for layer, counts in tokens_per_expert.items():
            idle = idle_fraction(counts)
            if idle is not None and idle >= self._most:
                found[layer] = round(idle * len(counts))
        new = {layer: number for layer, number in found.items() if layer not in self._collapsed}
        self._collapsed = set(found)
        return new


def idle_sentence(step: int, idle: Mapping[str, int], experts: int) -> str:
    """Sentence about layers with that many idle experts, of `experts` each."""
    (layer, number), *others = sorted(idle.items(), key=lambda one: -one[1])
    more = f", and many of {len(others)} more layer{'s' if len(others) > 1 else ''}" if others else ""
    return (
        f"step {step:,}: {number} of {experts} experts of {layer} are idle{more}: each has less than a tenth of the "
        "mean load. A larger model.experts.balance_loss, or model.experts.bias_rate with selection_bias, spreads tokens"
    )
