"""The one-rank fp32 run, and the comparison of a layout with it: step by step, every quantity on every rank."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from data_pipeline.recipes.replaced_tokens import ReplacedTokens
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import Layout
from pretrain.model_spec.router_biases import router_bias_shapes
from pretrain.models.megatron_config import DTYPES
from pretrain.verify.decay import DecaySums, decay_rate, decay_sums
from pretrain.verify.departure import QUANTITIES, Departure, Sighting, Verdict, size
from pretrain.verify.observation import Observation, RankMetrics, RankSamples, RankScores, TensorShard
from pretrain.verify.orthogonalized import Amplification
from pretrain.verify.replay import Replay
from pretrain.verify.routes import RankRoutes, RouteFlips
from pretrain.verify.samples import Flips, count_flips
from pretrain.verify.vanishing import vanishing_gradients

_FP32_RESOLUTION = 2.0**-23
_LEAST_DECAY = (
    2.0**-20
)  # of an update: less is lost in its rounding, as in weights that a few updates brought from zero
_FEW_UPDATES = 10.0  # weights of no more than so many updates are their sum: errors of the next go with their signs
_FULL_STEPS = 3.0  # two of opposite signs, and a margin for weight decay and for varying sizes

Before = dict[tuple[int, str, tuple[int, ...]], np.ndarray]
"""a layout's weights before a step, by rank, name and offset"""


class Reference:
    """All full weights and gradients of the reference run's steps."""

    def __init__(self, config: RunConfig, observations: Iterable[Observation]) -> None:
        self._optimizer, self._vanishing = config.optimizer, vanishing_gradients(config)
        self._loss_weight = _loss_weight(config)
        self._biases = router_bias_shapes(config.model)
        self._amplification = Amplification(config)
        self.steps = list(observations)
        self.replay = Replay.of(config, self.steps)
        self.weights = [{shard.name: shard.value for shard in seen.weights} for seen in self.steps]
        self.gradients = [{shard.name: shard.value for shard in seen.gradients} for seen in self.steps]
        self._sizes = [{name: _rms(gradient) for name, gradient in step.items()} for step in self.gradients]
        """root mean square of each step's gradients"""
        self._typical = [float(np.median(list(sizes.values()) or [0.0])) for sizes in self._sizes]
        self._clear: dict[tuple[int, str], np.ndarray] = {}

    def compare(
        self, observations: Iterable[Observation], layout: Layout, precision: str, bounds: dict[str, float]
    ) -> Verdict:
        """The verdict on a run on `layout`; `bounds` are of the quantities that need not be equal."""
        verdict = Verdict(dict.fromkeys(QUANTITIES, 0.0), [])
        before: Before = {}
        self._clear = {}
        self._amplification.restart()
        for seen in observations:
            departures = []
            everything = self._measure(seen, before, bounds, DTYPES[precision])
            for quantity, measured in sorted(everything.items(), key=lambda item: QUANTITIES.index(item[0])):
                by = max((amount for amount, _, _ in measured), key=size, default=0.0)
                verdict.largest[quantity] = max(verdict.largest[quantity], by, key=size)
                bound = bounds.get(quantity, 0.0)
                if not by <= bound:  # NaN too
                    departures.append(Departure.of(seen.step, quantity, bound, measured, layout))
            verdict.flips = sum(self._flips(seen), verdict.flips)
            verdict.route_flips += RouteFlips.of(_routes(seen))
            if seen.weights:
                before = {(shard.rank, shard.name, shard.offset): shard.value for shard in seen.weights}
            if not verdict.departures:
                verdict.departures = departures
        return verdict

    def _measure(
        self, seen: Observation, before: Before, bounds: dict[str, float], dtype: torch.dtype
    ) -> dict[str, list[Sighting]]:
        """Each quantity, as observed on each rank."""
        if not seen.weights:
            return {"checkpoint": [(float(r.different), r.name, r.rank) for r in seen.restored]}
        if seen.step == 0:
            different: list[Sighting] = [
                (_different(shard.value, shard.of(self.weights[0][shard.name])), shard.name, shard.rank)
                for shard in seen.weights
            ]
            different += _unheld(self.weights[0], seen.weights)
            return {"initial weights": different, "replicas": self._replicas(seen, dtype)}
        expected = self.steps[seen.step]
        (reference,) = expected.metrics
        self._amplification.add(self.gradients[seen.step], seen.gradients)
        found: dict[str, list[Sighting]] = {
            "samples": _samples(seen, expected),
            "token count": [(float(abs(m.token_count - reference.token_count)), None, m.rank) for m in seen.metrics],
            "replicas": self._replicas(seen, dtype),
            "loss": [(self._loss(m, reference), None, m.rank) for m in seen.metrics],
            "gradient norm": [
                (abs(m.grad_norm - reference.grad_norm) / (reference.grad_norm or 1.0), None, m.rank)
                for m in seen.metrics
            ],
            "router biases": [
                (_different(shard.value, shard.of(self.weights[seen.step][shard.name])), shard.name, shard.rank)
                for shard in seen.weights
                if shard.name in self._biases
            ],
            "gradient": [(self._gradient(seen.step, s, bounds, dtype), s.name, s.rank) for s in seen.gradients]
            + _unheld(self.gradients[seen.step], seen.gradients),
            "scores": _scores(seen.scores, expected.scores),
            "flips": [(flips.share, None, None) for flips in self._flips(seen)],
        }
        return found | _route_quantities(seen, bounds) | self._updates(seen, before, bounds, dtype)

    def _replicas(self, seen: Observation, dtype: torch.dtype) -> list[Sighting]:
        """Elements of the weights in use that are not the optimizer's weights, rounded: a rank that missed an update,
        or replicas that diverged."""
        whole = {name: np.full(value.shape, np.nan, np.float32) for name, value in self.weights[0].items()}
        for shard in seen.weights:
            shard.of(whole[shard.name])[...] = shard.value
        rounded = {name: torch.from_numpy(value).to(dtype).float().numpy() for name, value in whole.items()}
        return [(_different(s.value, s.of(rounded[s.name])), s.name, s.rank) for s in seen.replicas]

    def _loss(self, found: RankMetrics, expected: RankMetrics) -> float:
        """The largest difference of a term, or of the loss by the sum of its weights."""
        apart = [abs(found.loss - expected.loss) / self._loss_weight]
        apart += [abs(a - b) for a, b in zip(found.terms, expected.terms, strict=True)]
        return max(apart, key=size)

    def _flips(self, seen: Observation) -> list[Flips]:
        """The flips in the samples of the step, and in those of the rows that were scored after it."""
        if not self.steps[seen.step].samples or not seen.samples:
            return []
        found, expected = ([score.samples for score in one.scores] for one in (seen, self.steps[seen.step]))
        pairs = (seen.samples, self.steps[seen.step].samples), (_present(found), _present(expected))
        return [count_flips(*pair) for pair in pairs if pair[0]]

    def _gradient(self, step: int, shard: TensorShard, bounds: dict[str, float], dtype: torch.dtype) -> float:
        wanted = shard.of(self.gradients[step][shard.name])
        if shard.name in self._vanishing:
            return _rms(shard.value) / max(self._sizes[step].values())
        return _relative(shard.value - wanted, wanted, self._size(step, shard.name, bounds, dtype))

    def _size(self, step: int, name: str, bounds: dict[str, float], dtype: torch.dtype) -> float:
        """Root mean square of what rounding of a gradient is relative to. Where terms cancel, rounding is that of the
        terms. In half precision they are taken to be as large as the sum of the step where the least cancels. In any, a
        gradient that rounding of the model's others moves by more than the bound is taken to be larger: of a bias that
        moves all scores of a softmax nearly alike, next to nothing is left."""
        steps = [step] if dtype == torch.float32 else range(1, len(self._sizes))
        smallest = self._rounding(step, dtype) / bounds["gradient"]
        return max(smallest, *(self._sizes[number].get(name, 0.0) for number in steps))  # some unfreeze later

    def _is_rounding(self, step: int, name: str, dtype: torch.dtype) -> bool:
        """Whether a gradient that is not zero, of this step or of one before it, is smaller than rounding of the
        model's others."""
        steps = range(1, step + 1)
        return any(0 < self._sizes[number].get(name, 0.0) < self._rounding(number, dtype) for number in steps)

    def _rounding(self, step: int, dtype: torch.dtype) -> float:
        """Rounding of a term as large as the model's gradients are, by their median."""
        return torch.finfo(dtype).eps / 2 * self._typical[step]

    def _updates(
        self, seen: Observation, before: Before, bounds: dict[str, float], dtype: torch.dtype
    ) -> dict[str, list[Sighting]]:
        """Updates and the decay in them, per parameter and over all parameters of a rank: decay that rounding hides in
        one shows in many."""
        updates: list[Sighting] = []
        lost: list[Sighting] = []
        sums: dict[int, DecaySums] = {}
        for shard in seen.weights:
            name, rank = shard.name, shard.rank
            if name in self._biases:
                continue
            old, new = self.weights[seen.step - 1][name], self.weights[seen.step][name]
            if name not in self.gradients[seen.step]:  # frozen, so no element may change at all
                updates.append((_different(shard.value, shard.of(old)), name, rank))
                continue
            difference = (shard.value - before[rank, name, shard.offset]) - shard.of(new - old)
            if name in self._vanishing or self._is_rounding(seen.step, name, dtype):
                # Adam makes steps of any sign of what is left of the gradient.
                updates.append((0.0 if np.isfinite(difference).all() else np.nan, name, rank))
                continue
            whole_clear = self._clear_elements(seen.step, name, bounds, dtype)
            learning_rate = self.steps[seen.step].learning_rate
            by = self._update(shard, old, new, difference, whole_clear)
            if name in self._amplification and self._is_explained(shard, difference, learning_rate, dtype):
                by = 0.0
            updates.append((by, name, rank))
            rate = decay_rate(self._optimizer, learning_rate * self._amplification.rate_factor(name), new - old)
            of_update, of_old = _rms(new - old), _rms(old)
            if rate * of_old < _LEAST_DECAY * of_update or of_old < _FEW_UPDATES * of_update:
                continue
            clear = shard.of(whole_clear)
            decay = decay_sums(difference[clear], shard.of(old)[clear], rate)
            lost.append((decay.lost, name, rank))
            sums[rank] = sums.get(rank, DecaySums()) + decay
        return {"update": updates, "decay": lost + [(decay.lost, None, rank) for rank, decay in sums.items()]}

    def _is_explained(
        self, shard: TensorShard, difference: np.ndarray, learning_rate: float, dtype: torch.dtype
    ) -> bool:
        """Whether the difference of an update is no more than Muon's steps make of that of the gradients. Only in fp32,
        where gradients are close enough for that to say something."""
        explained = self._amplification.explained(shard.name, learning_rate)
        off = np.abs(difference) - 2 * _FP32_RESOLUTION * np.abs(shard.value)
        return dtype == torch.float32 and float(np.linalg.norm(np.maximum(off, 0))) <= explained

    def _clear_elements(self, step: int, name: str, bounds: dict[str, float], dtype: torch.dtype) -> np.ndarray:
        """Mask of the elements whose gradients so far are all clear of zero. From a gradient within rounding of zero
        Adam makes a step of up to full size, whose sign is chance. The gradient of `adam` includes the decay. Of a
        rule such as `lion`, the sums count whose signs its steps have."""
        if name in self._amplification:
            return np.ones(self.gradients[step][name].shape, bool)
        if (step, name) not in self._clear:
            earlier = self._clear_elements(step - 1, name, bounds, dtype) if step > 1 else True
            gradient, old = self.gradients[step][name], self.weights[step - 1][name]
            given = gradient + self._optimizer.weight_decay * old if self._decays_in_gradient(old) else gradient
            scale = self._size(step, name, bounds, dtype)
            if (shares := self._optimizer.sign_shares(step)) is not None:
                given, scale = self._summed(shares, name)
            self._clear[step, name] = (np.abs(given) > min(1.0, 100 * bounds["gradient"]) * scale) & earlier
        return self._clear[step, name]

    def _summed(self, shares: Sequence[float], name: str) -> tuple[np.ndarray, float]:
        """The sum of these shares of the gradients so far, and that of what bounds the rounding of each."""
        gradients = [self.gradients[step][name] for step in range(1, len(shares) + 1)]
        total = sum(share * gradient for share, gradient in zip(shares, gradients, strict=True))
        bound = sum(abs(share) * _rms(gradient) for share, gradient in zip(shares, gradients, strict=True))
        return np.asarray(total), bound

    def _decays_in_gradient(self, weights: np.ndarray) -> bool:
        return self._optimizer.name == "adam" and weights.ndim > 1

    def _update(
        self, shard: TensorShard, old: np.ndarray, new: np.ndarray, difference: np.ndarray, whole_clear: np.ndarray
    ) -> float:
        """Relative difference of an update. Elements that are not clear may take any step of up to full size. What fp32
        weights can't represent is left out, as is the effect of unclear elements on the others of a vector that is
        clipped as one."""
        clear, update = shard.of(whole_clear), shard.of(new - old)
        off = np.abs(difference) - 2 * _FP32_RESOLUTION * np.abs(shard.value)
        if self._optimizer.name == "adafactor" and new.ndim == 1:
            squares = np.square(new - old)
            off -= squares[~whole_clear].sum() / (squares.sum() or 1.0) * np.abs(update)
        full_step = float(np.abs(new - old).max())
        astray = float(off[~clear].max(initial=0.0)) / (full_step or 1.0)
        if astray > _FULL_STEPS or np.isnan(astray):
            return astray
        return _relative(np.maximum(off, 0)[clear], update[clear], _rms(new - old)) if clear.any() else 0.0


def _loss_weight(config: RunConfig) -> float:
    """Sum of the weights of a loss with terms of a second model; 1 for other losses."""
    if isinstance(config.objective, ReplacedTokens):
        return 1 + config.objective.replaced_weight
    if config.distillation.teacher is None:
        return 1.0
    settings = config.distillation
    of_layers = settings.hidden_weight + settings.attention_weight
    return max(1.0, settings.label_weight + settings.kl_weight + settings.cosine_weight + of_layers)


def _routes(seen: Observation) -> list[RankRoutes]:
    """Routes of the step, and of the rows that were scored after it."""
    return [*seen.routes, *(one for score in seen.scores for one in score.routes)]


def _route_quantities(seen: Observation, bounds: dict[str, float]) -> dict[str, list[Sighting]]:
    """Choices of routers: whether their scores are the reference's, and whether they follow from them."""
    routes = _routes(seen)
    if not routes:
        return {}
    flips = RouteFlips.of(routes).beyond_rounding(bounds["router scores"])
    return {
        "routes": [(float(one.broken), f"{one.layer}.mlp.router", one.rank) for one in routes],
        "router scores": [(one.apart, f"{one.layer}.mlp.router", one.rank) for one in routes],
        "route flips": [(flips, None, None)],
    }


def _present(samples: list[RankSamples | None]) -> list[RankSamples]:
    return [one for one in samples if one is not None]


def _samples(seen: Observation, expected: Observation) -> list[Sighting]:
    (wanted,) = expected.inputs
    found: list[Sighting] = [
        (_unlike(given.rows, wanted.rows[given.first : given.first + len(given.rows)]), None, given.rank)
        for given in seen.inputs
    ]
    rows = {row for given in seen.inputs for row in range(given.first, given.first + len(given.rows))}
    found.append((float(len(wanted.rows) - len(rows)), None, None))
    found.append((float(seen.data_hash != expected.data_hash), None, None))
    return found


def _scores(found: list[RankScores], expected: list[RankScores]) -> list[Sighting]:
    """Differences of log probabilities or of the means of other terms, or the fraction of positions whose argmax token
    differs."""
    sightings: list[Sighting] = []
    for scores in found:
        (wanted,) = expected
        rows = slice(scores.first, scores.first + len(scores.greedy))
        apart = [
            _rms(scores.log_probability - wanted.log_probability[rows]),
            float((scores.greedy != wanted.greedy[rows]).mean()),
        ]
        if scores.terms is not None and wanted.terms is not None:  # the reference's of one row each
            apart += np.abs(_means(scores.terms) - _means(wanted.terms[rows])).tolist()
        sightings.append((max(apart, key=size), None, scores.rank))
    return sightings


def _means(terms: np.ndarray) -> np.ndarray:
    """[terms] of the sums and counts of several calls."""
    sums = terms.sum(axis=0)
    return np.asarray(sums[:, 0] / np.maximum(sums[:, 1], 1))


def _unheld(whole: dict[str, np.ndarray], shards: list[TensorShard]) -> list[Sighting]:
    """Elements of each tensor that no rank holds: they can't differ, and must not pass as equal."""
    missing = {name: np.ones(value.shape, bool) for name, value in whole.items()}
    for shard in shards:
        shard.of(missing[shard.name])[...] = False
    return [(float(elements.sum()), name, None) for name, elements in missing.items()]


def _relative(difference: np.ndarray, reference: np.ndarray, typical: float) -> float:
    """Norm of the difference relative to the reference's, or to that of a typical piece where this one is small."""
    whole = max(float(np.linalg.norm(reference)), typical * np.sqrt(reference.size))
    off = float(np.linalg.norm(difference))
    return off / whole if whole else off


def _rms(values: np.ndarray) -> float:
    return float(np.linalg.norm(values) / np.sqrt(values.size))


def _different(found: np.ndarray, wanted: np.ndarray) -> float:
    return float((found.view(np.int32) != np.ascontiguousarray(wanted).view(np.int32)).sum())


def _unlike(found: tuple[str, ...], wanted: tuple[str, ...]) -> float:
    return float(sum(a != b for a, b in zip(found, wanted, strict=False)) + abs(len(found) - len(wanted)))
