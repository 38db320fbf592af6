"""How far a layout departs from the one-rank fp32 run, against what rounding explains."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from pretrain.models.megatron_config import DTYPES
from pretrain.plan.layout import Layout
from pretrain.verify.probe import Held, Observation

QUANTITIES = ("initial weights", "samples", "token count", "copies", "loss", "gradient norm", "gradient", "update")
EXACT = QUANTITIES[:4]
_FP32_RESOLUTION = 2.0**-23
_FULL_STEPS = 3.0  # two of opposite signs, and room for weight decay and for how sizes vary

# What summing in another order does in fp32, with room. docs/benchmarks.md has what was measured.
FP32 = {"loss": 1e-5, "gradient norm": 1e-5, "gradient": 1e-4, "update": 1e-3}
# How far from fp32 half precision may lead one rank.
HALF = {"loss": 2e-2, "gradient norm": 5e-2, "gradient": 2e-1, "update": 5e-1}
# How many times as far as one rank a layout may depart. Training amplifies rounding, more at a higher learning rate, so
# it is measured: one rank departs in fp32 only because its micro-batches are of another size, in half by all rounding.
_FP32_MARGIN, _HALF_MARGIN = 10.0, 4.0
# One number may be near the reference's by luck, which thousands of elements are not.
_HALF_FLOORS = {"loss": 1e-3, "gradient norm": 5e-3, "gradient": 1e-2, "update": 1e-2}


@dataclass(frozen=True)
class Departure:
    """One quantity of one step that is further from the reference than rounding explains."""

    step: int
    quantity: str
    by: float
    """loss: nats; the exact ones: how many; the rest relative to the size of the reference's"""
    bound: float
    parameter: str | None
    """the one that departs furthest"""
    parameters: int
    """how many depart"""
    stages: tuple[int, ...]
    """pipeline stages where it was seen"""
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        what = self.quantity if self.parameter is None else f"{self.quantity} of {self.parameter}"
        what += f" (and of {self.parameters - 1} more)" if self.parameters > 1 else ""
        where = f" on stage {_numbers(self.stages)} (rank {_numbers(self.ranks)})" if self.ranks else ""
        if self.quantity in EXACT:
            return f"step {self.step}: {what} not equal{where}"
        return f"step {self.step}: {what} departs by {self.by:.2e}{where}; rounding explains {self.bound:.2e}"


@dataclass
class Verdict:
    """The comparison of one layout with the reference."""

    largest: dict[str, float]
    """of each quantity, over steps and parameters"""
    departures: list[Departure]
    """of the first step that departs, in the order of QUANTITIES"""

    @property
    def same(self) -> bool:
        return not self.departures


class Reference:
    """The one-rank fp32 run, whole: observations to compare others with, step by step."""

    def __init__(self, observations: Iterable[Observation], optimizer: str = "adamw") -> None:
        self._clips_vectors = optimizer == "adafactor"
        self.steps = list(observations)
        self.weights = [{held.name: held.value for held in seen.weights} for seen in self.steps]
        self.gradients = [{held.name: held.value for held in seen.gradients} for seen in self.steps]

    def compare(
        self, found: Iterable[Observation], layout: Layout, precision: str, bounds: dict[str, float]
    ) -> Verdict:
        """`bounds` for the quantities that need not be equal."""
        verdict = Verdict(dict.fromkeys(QUANTITIES, 0.0), [])
        before: dict[tuple[int, str, tuple[int, ...]], np.ndarray] = {}
        for seen in found:
            departures = []
            everything = self._measure(seen, before, bounds) | {"copies": self._copies(seen, DTYPES[precision])}
            for quantity, measured in sorted(everything.items(), key=lambda item: QUANTITIES.index(item[0])):
                by = max((amount for amount, _, _ in measured), key=_size, default=0.0)
                verdict.largest[quantity] = max(verdict.largest[quantity], by, key=_size)
                bound = bounds.get(quantity, 0.0)
                if not by <= bound:  # also when it is not a number
                    departures.append(_departure(seen.step, quantity, bound, measured, layout))
            before = {(held.rank, held.name, held.offset): held.value for held in seen.weights}
            if not verdict.departures:
                verdict.departures = departures
        return verdict

    def _measure(
        self, seen: Observation, before: dict[tuple[int, str, tuple[int, ...]], np.ndarray], bounds: dict[str, float]
    ) -> dict[str, list[tuple[float, str | None, int | None]]]:
        """(by how much, parameter, rank) of each quantity in each place it was seen."""
        expected = self.steps[seen.step]
        if seen.step == 0:
            different = [(_different(h.value, _box(self.weights[0][h.name], h)), h.name, h.rank) for h in seen.weights]
            return {"initial weights": different + _unheld(self.weights[0], seen.weights)}
        (reference_fed,), (told,) = expected.fed, expected.said
        samples: list[tuple[float, str | None, int | None]] = [
            (_unlike(fed.rows, reference_fed.rows[fed.first : fed.first + len(fed.rows)]), None, fed.rank)
            for fed in seen.fed
        ]
        given = {row for fed in seen.fed for row in range(fed.first, fed.first + len(fed.rows))}
        samples.append((float(len(reference_fed.rows) - len(given)), None, None))
        samples.append((float(seen.data_hash != expected.data_hash), None, None))
        return {
            "samples": samples,
            "token count": [(float(abs(said.token_count - told.token_count)), None, said.rank) for said in seen.said],
            "loss": [(abs(said.loss - told.loss), None, said.rank) for said in seen.said],
            "gradient norm": [
                (abs(said.grad_norm - told.grad_norm) / (told.grad_norm or 1.0), None, said.rank) for said in seen.said
            ],
            "gradient": [(self._gradient(seen.step, held), held.name, held.rank) for held in seen.gradients]
            + _unheld(self.gradients[seen.step], seen.gradients),
            "update": [
                (self._update(seen.step, held, before[held.rank, held.name, held.offset], bounds), held.name, held.rank)
                for held in seen.weights
            ],
        }

    def _copies(self, seen: Observation, dtype: torch.dtype) -> list[tuple[float, str | None, int | None]]:
        """Elements of the weights that ranks compute with that are not those the optimizer holds, rounded: a rank
        that was not told of an update, or replicas that went different ways."""
        whole = {name: np.full(value.shape, np.nan, np.float32) for name, value in self.weights[0].items()}
        for held in seen.weights:
            _box(whole[held.name], held)[...] = held.value
        rounded = {name: torch.from_numpy(value).to(dtype).float().numpy() for name, value in whole.items()}
        return [(_different(held.value, _box(rounded[held.name], held)), held.name, held.rank) for held in seen.copies]

    def _gradient(self, step: int, held: Held) -> float:
        whole = self.gradients[step][held.name]
        wanted = _box(whole, held)
        return _relative(held.value - wanted, wanted, _rms(whole))

    def _update(self, step: int, held: Held, before: np.ndarray, bounds: dict[str, float]) -> float:
        """Where the gradient is within rounding of zero, Adam makes a step of up to full size out of it, whose sign is
        chance: of such elements only that is asked. What fp32 weights can't hold is left out; and, of a vector that is
        clipped as a whole, what such elements do to the others by that."""
        old, new = self.weights[step - 1][held.name], self.weights[step][held.name]
        update = _box(new, held) - _box(old, held)
        whole_clear = np.ones(new.shape, bool)
        for earlier in (gradients[held.name] for gradients in self.gradients[1 : step + 1]):
            whole_clear &= np.abs(earlier) > min(1.0, 100 * bounds["gradient"]) * _rms(earlier)
        clear = _box(whole_clear, held)
        off = np.abs((held.value - before) - update) - 2 * _FP32_RESOLUTION * np.abs(held.value)
        if self._clips_vectors and new.ndim == 1:
            squares = np.square(new - old)
            off -= squares[~whole_clear].sum() / (squares.sum() or 1.0) * np.abs(update)
        full_step = float(np.abs(new - old).max())
        astray = float(off[~clear].max(initial=0.0)) / (full_step or 1.0)
        if astray > _FULL_STEPS or np.isnan(astray):
            return astray
        return _relative(np.maximum(off, 0)[clear], update[clear], _rms(new - old)) if clear.any() else 0.0


def bounds_of(precision: str, one_rank: Verdict | None) -> dict[str, float]:
    """What rounding explains in `precision`, given what it did on one rank (None: that is what is to be found out)."""
    half = precision != "fp32"
    if one_rank is None:
        return HALF if half else FP32
    margin, floors = (_HALF_MARGIN, _HALF_FLOORS) if half else (_FP32_MARGIN, FP32)
    return {quantity: max(floor, margin * one_rank.largest[quantity]) for quantity, floor in floors.items()}


def _departure(
    step: int, quantity: str, bound: float, measured: list[tuple[float, str | None, int | None]], layout: Layout
) -> Departure:
    by, parameter, _ = max(measured, key=lambda one: _size(one[0]))
    beyond = [(name, rank) for amount, name, rank in measured if not amount <= bound]
    ranks = {rank for name, rank in beyond if name == parameter and rank is not None}
    if parameter is None and len(ranks) == layout.world:
        ranks = set()  # what all say alike is nowhere
    stages = {layout.coordinates(rank)[3] for rank in ranks}
    parameters = len({name for name, _ in beyond if name is not None})
    return Departure(
        step, quantity, float(by), bound, parameter, parameters, tuple(sorted(stages)), tuple(sorted(ranks))
    )


def _unheld(whole: dict[str, np.ndarray], held: list[Held]) -> list[tuple[float, str | None, int | None]]:
    """Elements of each tensor that no rank holds: what nobody has can't differ, and must not pass for equal."""
    missing = {name: np.ones(value.shape, bool) for name, value in whole.items()}
    for part in held:
        _box(missing[part.name], part)[...] = False
    return [(float(elements.sum()), name, None) for name, elements in missing.items()]


def _box(whole: np.ndarray, held: Held) -> np.ndarray:
    return whole[tuple(slice(o, o + n) for o, n in zip(held.offset, held.value.shape, strict=True))]


def _relative(difference: np.ndarray, reference: np.ndarray, typical: float) -> float:
    """Norm of the difference against the reference's, or, where a piece happens to be small, against a piece of
    typical size."""
    size = max(float(np.linalg.norm(reference)), typical * np.sqrt(reference.size))
    off = float(np.linalg.norm(difference))
    return off / size if size else off


def _size(amount: float) -> float:
    """For comparing: what is not a number is worst."""
    return np.inf if np.isnan(amount) else amount


def _rms(values: np.ndarray) -> float:
    return float(np.linalg.norm(values) / np.sqrt(values.size))


def _different(found: np.ndarray, wanted: np.ndarray) -> float:
    return float((found.view(np.int32) != np.ascontiguousarray(wanted).view(np.int32)).sum())


def _unlike(found: tuple[str, ...], wanted: tuple[str, ...]) -> float:
    return float(sum(a != b for a, b in zip(found, wanted, strict=True)))


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
