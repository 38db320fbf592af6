"""Where the tokens of a layout go in layers of experts, compared with the reference, whose routes the layout uses.

Rounding decides between two experts whose scores are nearly the same. Such a token flips, and each flip changes the
gradients of two experts by far more than rounding does. So layouts use the reference's routes, with weights of their
own, and their own choices are judged by themselves: by the scores that they are made from, by the rule that makes them,
and by how many differ, and how nearly equal the reference's scores are there.

Scores are those that choose, with their bias. Distances are in units of the spread of the reference's scores in a
layer: their root mean square deviation from the mean over a token's experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pretrain.config.experts import Experts
from pretrain.models.route_log import LoggedRoutes

_NEAR = 0.05  # of all tokens, those by whose borders the density of borders at 0 is estimated
_FEW, _TIMES = 3.0, 3.0  # flips that are no sign of anything, and how many times those expected there may be


@dataclass(frozen=True)
class ReferenceRoutes:
    """The reference's routes in one layer, of a global batch."""

    preferences: np.ndarray
    """[rows, positions, experts] scores that choose; NaN where it computed nothing"""
    experts: np.ndarray
    """[rows, positions, top_k] ascending"""
    spread: float
    density: float
    """density of border gaps at 0: share of tokens for each unit of spread"""

    @classmethod
    def of(cls, logged: Sequence[LoggedRoutes], settings: Experts, rows: int, positions: int) -> "ReferenceRoutes":
        """The routes in what the reference logged of the layer, of `rows` rows and `positions` positions."""
        preferences = np.full((rows, positions, settings.count), np.nan, np.float32)
        experts = np.broadcast_to(np.arange(settings.top_k), (rows, positions, settings.top_k)).copy()
        for one in logged:
            at = slice(one.first, one.first + one.experts.shape[1])
            preferences[one.rows, at], experts[one.rows, at] = one.preferences, one.experts
        known = preferences[~np.isnan(preferences[..., 0])]
        spread = float(np.sqrt(np.square(known - known.mean(-1, keepdims=True), dtype=np.float64).mean())) or 1.0
        near = float(np.quantile(_borders(known, settings), _NEAR)) / spread
        return cls(preferences, experts, spread, _NEAR / near if near else np.inf)

    def rows(self, rows: slice) -> "ReferenceRoutes":
        """Some of the rows."""
        return ReferenceRoutes(self.preferences[rows], self.experts[rows], self.spread, self.density)


Routes = dict[str, ReferenceRoutes]
"""the reference's, by layer"""


def reference_routes(logged: Sequence[LoggedRoutes], settings: Experts, positions: int) -> Routes:
    """The routes of a step or of scored rows, in what the reference logged of them."""
    rows = 1 + max((int(one.rows.max()) for one in logged), default=-1)
    by_layer: dict[str, list[LoggedRoutes]] = {}
    for one in logged:
        by_layer.setdefault(one.layer, []).append(one)
    return {layer: ReferenceRoutes.of(parts, settings, rows, positions) for layer, parts in by_layer.items()}


def row_routes(routes: Routes, first: int, count: int) -> Routes:
    """The routes of `count` rows from `first` on."""
    return {layer: one.rows(slice(first, first + count)) for layer, one in routes.items()}


def experts_of(routes: Routes) -> Mapping[str, np.ndarray]:
    """The experts of each token, by layer."""
    return {layer: one.experts for layer, one in routes.items()}


@dataclass(frozen=True, kw_only=True)
class RankRoutes:
    """The routes of one rank in one layer, compared with the reference's."""

    rank: int
    layer: str
    place: tuple[bool, int, int]
    """whether its rows were scored, the first of them in the batch, and the first position"""
    tokens: int
    flipped: int
    """tokens that would go elsewhere"""
    broken: int
    """tokens whose choice is not the one that the layout's own scores make"""
    apart: float
    """largest distance of a score from the reference's"""
    expected: float
    """flips that distances as large as the mean make"""
    gap: float
    """largest distance of the reference's scores between which a choice flipped"""


def compare_routes(
    found: Sequence[LoggedRoutes], wanted: Routes, settings: Experts, *, rank: int, first_row: int, scored: bool = False
) -> list[RankRoutes]:
    """Comparison of the routes that a rank logged with the reference's routes of its rows, which begin at `first_row`
    of the batch."""
    return [
        _compare(
            [one for one in found if one.layer == layer],
            wanted[layer],
            settings,
            rank=rank,
            first_row=first_row,
            scored=scored,
        )
        for layer in dict.fromkeys(one.layer for one in found)
    ]


def _compare(
    found: Sequence[LoggedRoutes],
    wanted: ReferenceRoutes,
    settings: Experts,
    *,
    rank: int,
    first_row: int,
    scored: bool,
) -> RankRoutes:
    tokens = flipped = broken = 0
    apart = total_apart = gap = 0.0
    for one in found:
        at = one.rows, slice(one.first, one.first + one.experts.shape[1])
        expected = wanted.preferences[at]
        known = ~np.isnan(expected[..., 0])
        own, theirs, expected = one.preferences[known], wanted.experts[at][known], expected[known]
        chosen = one.experts[known]
        distances = np.abs(own - expected) / wanted.spread
        tokens += len(own)
        apart = max(apart, float(distances.max(initial=0.0)), key=_size)
        total_apart += float(distances.mean(-1).sum())
        broken += int((_choose(own, settings) != chosen).any(-1).sum())
        flips = (chosen != theirs).any(-1)
        flipped += int(flips.sum())
        gap = max(gap, _gap(expected[flips], own[flips], theirs[flips], chosen[flips], settings) / wanted.spread)
    mean = total_apart / max(tokens, 1)
    return RankRoutes(
        rank=rank,
        layer=found[0].layer,
        place=(scored, first_row, min(one.first for one in found)),
        tokens=tokens,
        flipped=flipped,
        broken=broken,
        apart=apart,
        expected=tokens * min(1.0, wanted.density * mean / np.sqrt(2)) if mean else 0.0,
        gap=gap,
    )


@dataclass(frozen=True)
class RouteFlips:
    """Choices that are not the reference's, of all layers and ranks."""

    flipped: int = 0
    tokens: int = 0
    expected: float = 0.0
    gap: float = 0.0

    @classmethod
    def of(cls, found: Sequence[RankRoutes]) -> "RouteFlips":
        """The flips of a step: of ranks that route the same tokens, those of the one with the most."""
        most: dict[tuple[str, tuple[bool, int, int]], RankRoutes] = {}
        for one in found:
            key = one.layer, one.place
            most[key] = max(most.get(key, one), one, key=lambda routes: routes.flipped)
        return sum((cls(one.flipped, one.tokens, one.expected, one.gap) for one in most.values()), cls())

    def __add__(self, other: "RouteFlips") -> "RouteFlips":
        return RouteFlips(
            self.flipped + other.flipped,
            self.tokens + other.tokens,
            self.expected + other.expected,
            max(self.gap, other.gap),
        )

    def beyond_rounding(self, apart: float) -> float:
        """Flips as a multiple of what rounding explains: of their number, or of the gap that scores leave which may be
        `apart` from the reference's, each of two."""
        return max(self.flipped / (_FEW + _TIMES * self.expected), self.gap / (2 * apart))

    def __str__(self) -> str:
        return (
            f"{self.flipped:,} of {self.tokens:,} choices flipped, at gaps of up to {self.gap:.1e}; rounding explains "
            f"about {self.expected:,.1f}"
        )


def _choose(preferences: np.ndarray, settings: Experts) -> np.ndarray:
    """[tokens, top_k] the rule, as `models/expert_choice.py` has it, made again."""
    if settings.groups > 1:
        kept = _groups(preferences, settings)
        preferences = np.where(np.repeat(kept, settings.count // settings.groups, axis=-1), preferences, -np.inf)
    chosen: np.ndarray = np.sort(np.argsort(-preferences, axis=-1, kind="stable")[..., : settings.top_k], axis=-1)
    return chosen


def _groups(preferences: np.ndarray, settings: Experts) -> np.ndarray:
    """[tokens, groups] whether experts may come from the group."""
    order = np.argsort(-_group_scores(preferences, settings), axis=-1, kind="stable")[..., : settings.top_groups]
    kept = np.zeros((len(preferences), settings.groups), bool)
    np.put_along_axis(kept, order, True, axis=-1)
    return kept


def _group_scores(preferences: np.ndarray, settings: Experts) -> np.ndarray:
    by_group = preferences.reshape(len(preferences), settings.groups, settings.count // settings.groups)
    scores: np.ndarray = np.sort(by_group, axis=-1)[..., -_per_group(settings) :].sum(-1)
    return scores


def _borders(preferences: np.ndarray, settings: Experts) -> np.ndarray:
    """[tokens] how far the last one chosen is from the first one that is not: experts, or groups, whose distance is
    shared by the experts that their scores are of."""
    gaps = np.full(len(preferences), np.inf)
    if settings.groups > 1:
        gaps = _border(_group_scores(preferences, settings), settings.top_groups) / _per_group(settings)
        kept = np.repeat(_groups(preferences, settings), settings.count // settings.groups, axis=-1)
        preferences = np.where(kept, preferences, -np.inf)
    least: np.ndarray = np.minimum(gaps, _border(preferences, settings.top_k))
    return least


def _border(values: np.ndarray, chosen: int) -> np.ndarray:
    if chosen == values.shape[-1]:
        return np.full(len(values), np.inf)
    ordered = np.sort(values, axis=-1)
    border: np.ndarray = ordered[:, -chosen] - ordered[:, -chosen - 1]
    return border


def _per_group(settings: Experts) -> int:
    """Experts whose scores make that of their group."""
    return 2 if settings.group_score == "two_best" else 1


def _gap(
    wanted_scores: np.ndarray, scores: np.ndarray, wanted: np.ndarray, chosen: np.ndarray, settings: Experts
) -> float:
    """The largest distance in the reference's scores between what it chose and a layout did not, and what the layout
    chose instead: of groups where these differ, else of experts."""
    lost, gained = (_chosen_alone(*pair, settings.count) for pair in ((wanted, chosen), (chosen, wanted)))
    gaps = _worst(wanted_scores, lost, gained)
    if settings.groups > 1:
        kept, others = _groups(wanted_scores, settings), _groups(scores, settings)
        of_groups = _worst(_group_scores(wanted_scores, settings), kept & ~others, others & ~kept)
        gaps = np.where((kept != others).any(-1), of_groups / _per_group(settings), gaps)
    return float(gaps.max(initial=0.0))


def _chosen_alone(these: np.ndarray, those: np.ndarray, count: int) -> np.ndarray:
    """[tokens, count] whether something is among `these` [tokens, K] and not among `those`."""
    found = np.zeros((len(these), count), bool)
    np.put_along_axis(found, these, True, axis=-1)
    np.put_along_axis(found, those, False, axis=-1)
    return found


def _worst(scores: np.ndarray, lost: np.ndarray, gained: np.ndarray) -> np.ndarray:
    """[tokens] the best score of what was lost, less the least of what was gained."""
    best, least = np.where(lost, scores, -np.inf).max(-1), np.where(gained, scores, np.inf).min(-1)
    worst: np.ndarray = best - least
    return worst


def _size(amount: float) -> float:
    return np.inf if np.isnan(amount) else amount
