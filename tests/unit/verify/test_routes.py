"""What verify makes of routes: flips that rounding explains, and choices that do not follow from their scores."""

from typing import Any

import numpy as np
import pytest
import torch

from pretrain.config.experts import Experts
from pretrain.models.expert_choice import select
from pretrain.models.route_log import LoggedRoutes
from pretrain.verify.routes import RankRoutes, RouteFlips, _choose, compare_routes, reference_routes, row_routes

ROWS, POSITIONS, LAYER = 20, 100, "decoder.layers.1"
SETTINGS = {
    "plain": {"count": 64, "top_k": 8},
    "groups": {"count": 64, "top_k": 6, "groups": 8, "top_groups": 3},
    "best of groups": {"count": 16, "top_k": 2, "groups": 8, "top_groups": 2, "group_score": "best"},
}


def _settings(name: str) -> Experts:
    return Experts.model_validate(SETTINGS[name])


def _preferences(settings: Experts, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, POSITIONS, settings.count), np.float32)


def _chosen(preferences: np.ndarray, settings: Experts) -> np.ndarray:
    flat = torch.from_numpy(preferences.reshape(-1, settings.count))
    found: np.ndarray = select(flat, settings).numpy().reshape(*preferences.shape[:2], settings.top_k)
    return found


def _logged(preferences: np.ndarray, settings: Experts, first: int = 0, **others: Any) -> LoggedRoutes:
    chosen = others.pop("chosen", None)
    experts = _chosen(preferences, settings) if chosen is None else chosen
    rows = others.pop("rows", np.arange(len(preferences)))
    return LoggedRoutes(LAYER, rows, first, preferences, experts)


def _compared(found: list[LoggedRoutes], settings: Experts, expected: np.ndarray) -> RankRoutes:
    wanted = reference_routes([_logged(expected, settings)], settings, POSITIONS)
    (routes,) = compare_routes(found, wanted, settings, rank=0, first_row=0)
    return routes


@pytest.mark.parametrize("name", SETTINGS)
def test_the_rule_is_that_of_the_router(name: str) -> None:
    settings = _settings(name)
    preferences = _preferences(settings).round(1)  # of which many are equal
    expected = _chosen(preferences, settings).reshape(-1, settings.top_k)
    assert np.array_equal(_choose(preferences.reshape(-1, settings.count), settings), expected)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("noise", [1e-2, 1e-3])
def test_flips_of_noise_are_as_many_as_expected_and_at_small_gaps(name: str, noise: float) -> None:
    settings = _settings(name)
    reference = _preferences(settings)
    found = reference + np.float32(noise) * _preferences(settings, seed=1)
    routes = _compared([_logged(found, settings)], settings, reference)
    assert routes.tokens == ROWS * POSITIONS
    assert routes.broken == 0
    assert routes.flipped == pytest.approx(routes.expected, abs=4 * routes.expected**0.5 + 2)
    assert routes.gap <= 2 * routes.apart
    assert RouteFlips.of([routes]).beyond_rounding(routes.apart) < 1


@pytest.mark.parametrize("name", SETTINGS)
def test_choices_that_do_not_follow_from_scores_are_seen(name: str) -> None:
    settings = _settings(name)
    reference = _preferences(settings)
    reference[3, 5] = 0.0  # all are equal, so the first are chosen
    chosen = _chosen(reference, settings)
    last = np.arange(settings.count)[-settings.top_k :]
    other = chosen.copy()
    other[3, 5] = last
    routes = _compared([_logged(reference, settings, chosen=other)], settings, reference)
    assert (routes.broken, routes.flipped, routes.gap) == (1, 1, 0)
    other[3, 5], other[7, 0] = chosen[3, 5], np.sort(np.argsort(reference[7, 0])[: settings.top_k])
    routes = _compared([_logged(reference, settings, chosen=other)], settings, reference)
    assert routes.broken == 1
    assert RouteFlips.of([routes]).beyond_rounding(1e-4) > 100, "not of equal ones"


def test_scores_of_another_bias_are_far_from_the_reference_s() -> None:
    settings = _settings("plain")
    reference = _preferences(settings)
    found = reference.copy()
    found[..., 3] += 0.01
    routes = _compared([_logged(found, settings)], settings, reference)
    assert routes.broken == 0
    assert routes.apart == pytest.approx(0.01, rel=0.02)


def test_parts_of_rows_and_positions_are_compared_where_they_lie() -> None:
    settings = _settings("groups")
    reference = _preferences(settings)
    wanted = row_routes(reference_routes([_logged(reference, settings)], settings, POSITIONS), 5, 10)
    order = np.array([3, 0, 9])
    part = _logged(reference[5 + order, 40:60], settings, 40, rows=order)
    (routes,) = compare_routes([part], wanted, settings, rank=1, first_row=5)
    assert (routes.tokens, routes.flipped, routes.apart) == (60, 0, 0)
    assert routes.place == (False, 5, 40)
    moved = _logged(reference[5 + order, 40:60], settings, 41, rows=order)
    assert compare_routes([moved], wanted, settings, rank=1, first_row=5)[0].flipped > 50


def test_positions_that_the_reference_did_not_compute_do_not_count() -> None:
    settings = _settings("plain")
    reference = _preferences(settings)
    wanted = reference_routes([_logged(reference[:, :90], settings)], settings, POSITIONS)
    assert wanted[LAYER].experts.shape == (ROWS, POSITIONS, settings.top_k)
    (routes,) = compare_routes([_logged(reference, settings)], wanted, settings, rank=0, first_row=0)
    assert (routes.tokens, routes.flipped, routes.apart) == (ROWS * 90, 0, 0)


def test_tokens_that_several_ranks_route_count_once() -> None:
    settings = _settings("plain")
    routes = _compared([_logged(_preferences(settings, 1), settings)], settings, _preferences(settings))
    assert routes.flipped > 100
    twice, once = RouteFlips.of([routes, routes]), RouteFlips.of([routes])
    assert twice == once
    assert "choices flipped" in str(once)
