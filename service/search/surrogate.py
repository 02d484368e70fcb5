"""How fast is a schedule likely to be, judged by those that were timed?

A Gaussian process over the codes of schedules, with one weight a parameter (how much it matters) and one
for the family's cost model, chosen by marginal likelihood. It ranks candidates by expected improvement.
Plain numpy: a few milliseconds for a few hundred rows and candidates, whatever is then chosen of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.search.coding import Codes, Coding

Floats = NDArray[np.float64]

FIT_STEPS = 40
WEIGHT_LEAST, WEIGHT_MOST = 0.02, 20.0
NOISE_LEAST, NOISE_MOST = 0.003, 0.5
# Weights that the data say nothing about stay near 1.
PRIOR = 0.1
# Over any square of standard values that is possible with the least noise.
_ABOVE = 1e8


@dataclass(frozen=True, slots=True)
class Point:
    """A schedule as the surrogate sees it."""

    codes: Codes
    log_predicted: float
    """Logarithm of the cost model's time."""


@dataclass(frozen=True)
class Weights:
    """How much each axis, and last the cost model, sets two schedules apart; and the noise of a time."""

    axes: Floats
    noise: float


class Metric:
    """Distances between points, one for each axis: the share of an ordered axis' length, 1 for another label,
    and the difference of the predictions' logarithms, 2 at most."""

    def __init__(self, coding: Coding) -> None:
        self.dimensions = len(coding.axes) + 1
        spans = [len(axis.choices) - 1 if axis.ordered else 1 for axis in coding.axes]
        self._scale = 1.0 / np.array([*spans, 1.0])
        self._labels = [i for i, axis in enumerate(coding.axes) if not axis.ordered]
        self._most = np.full(self.dimensions, np.inf)
        self._most[self._labels] = 1.0
        self._most[-1] = 2.0

    def place(self, points: Sequence[Point]) -> Floats:
        """Shape (axes + 1, points)."""
        rows = [(*point.codes, point.log_predicted) for point in points]
        return np.array(rows, dtype=np.float64).reshape(len(rows), self.dimensions).T * self._scale[:, None]

    def apart(self, left: Floats, right: Floats) -> Floats:
        """Shape (axes + 1, left, right)."""
        return np.stack([self._axis(axis, left, right) for axis in range(self.dimensions)])

    def near(self, weights: Weights, left: Floats, right: Floats) -> Floats:
        """How much each of the one tells of each of the other, from 0 to 1."""
        total = np.zeros((left.shape[1], right.shape[1]))
        for axis, weight in enumerate(weights.axes):
            one = self._axis(axis, left, right)
            one *= weight
            total -= one
        return np.exp(total, out=total)

    def _axis(self, axis: int, left: Floats, right: Floats) -> Floats:
        found: Floats = np.subtract.outer(left[axis], right[axis])
        np.abs(found, out=found)
        most = self._most[axis]
        # Codes of labels are whole numbers: 1 at most is 0 for the same and 1 for another.
        return found if most == np.inf else np.minimum(found, most, out=found)


def fit(metric: Metric, points: Sequence[Point], log_times: Sequence[float], seed: int) -> Weights:
    """Weights by a short random search, one at a time: a function of its arguments."""
    rng = np.random.default_rng(seed)
    places = metric.place(points)
    apart = metric.apart(places, places)
    values = _standard(np.array(log_times))[0]
    axes, noise = np.ones(metric.dimensions), 0.05
    far: Floats = np.tensordot(axes, apart, 1)
    best = _cost(far, values, axes, noise)
    # A cost model may say nothing about this problem: look at that first.
    deaf = axes.copy()
    deaf[-1] = WEIGHT_LEAST
    without: Floats = far + (WEIGHT_LEAST - 1.0) * apart[-1]
    if (cost := _cost(without, values, deaf, noise)) < best:
        axes, far, best = deaf, without, cost
    for step in range(FIT_STEPS):
        trial, trial_noise, moved = axes.copy(), noise, far
        pick = step % (metric.dimensions + 2)
        if pick == metric.dimensions:
            trial = np.clip(trial * math.exp(0.7 * rng.standard_normal()), WEIGHT_LEAST, WEIGHT_MOST)
            moved = np.tensordot(trial, apart, 1)
        elif pick == metric.dimensions + 1:
            trial_noise = float(np.clip(noise * math.exp(rng.standard_normal()), NOISE_LEAST, NOISE_MOST))
        else:
            weight = trial[pick] * math.exp(1.2 * rng.standard_normal())
            trial[pick] = np.clip(weight, WEIGHT_LEAST, WEIGHT_MOST)
            moved = far + (trial[pick] - axes[pick]) * apart[pick]
        cost = _cost(moved, values, trial, trial_noise)
        if cost < best:
            axes, noise, far, best = trial, trial_noise, moved, cost
    return Weights(axes, noise)


class Surrogate:
    """What is known of a search: points with their times, and points whose time is not known yet, which are
    taken to be as fast as the others let expect, so that the next choice is made elsewhere."""

    def __init__(
        self,
        metric: Metric,
        weights: Weights,
        points: Sequence[Point],
        log_times: Sequence[float],
        in_flight: Sequence[Point],
    ) -> None:
        self.metric = metric
        self.weights = weights
        values = _standard(np.array(log_times))[0]
        self.best = float(values.min())
        self.places = metric.place([*points, *in_flight])
        kernel = metric.near(weights, self.places, self.places)
        kernel[np.diag_indices_from(kernel)] += weights.noise
        self.lower = np.linalg.cholesky(kernel)
        # Believed times change no expectation, so they add nothing here; they make others more certain.
        timed = len(points)
        self.solved = np.zeros(len(kernel))
        self.solved[:timed] = np.linalg.solve(self.lower[:timed, :timed], values)

    def of(self, points: Sequence[Point]) -> Candidates:
        """What is expected of these."""
        return Candidates(self, points)


class Candidates:
    """Points of which some are to be chosen, one after another."""

    def __init__(self, known: Surrogate, points: Sequence[Point]) -> None:
        self._known = known
        self._places = known.metric.place(points)
        near = known.metric.near(known.weights, known.places, self._places)
        self._across: NDArray[np.floating[Any]] = np.linalg.solve(known.lower, near)
        self._mean = known.solved @ self._across
        self._variance = 1.0 + known.weights.noise - (self._across**2).sum(axis=0)

    def improvement(self) -> Floats:
        """Expected improvement over the best so far, in units of the times' spread."""
        deviation = np.sqrt(np.maximum(self._variance, 1e-9))
        z = (self._known.best - self._mean) / deviation
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        below = 0.5 * (1 + np.array([math.erf(one) for one in (z / math.sqrt(2)).tolist()]))
        improvement: Floats = deviation * (z * below + density)
        return improvement

    def believe(self, index: int) -> None:
        """Take the expected time of this one for its time: one row more of the factor."""
        known = self._known
        near = known.metric.near(known.weights, self._places[:, index : index + 1], self._places)[0]
        here = self._across[:, index]
        row = (near - here @ self._across) / math.sqrt(max(float(self._variance[index]), 1e-9))
        self._across = np.vstack([self._across, row])
        self._variance = self._variance - row**2


def _standard(values: Floats) -> tuple[Floats, float, float]:
    """Values with mean 0 and deviation 1, and what they were."""
    mean, scale = float(values.mean()), float(values.std())
    scale = scale if scale > 1e-9 else 1.0
    return (values - mean) / scale, mean, scale


def _cost(far: Floats, values: Floats, axes: Floats, noise: float) -> float:
    """Negative logarithm of the marginal likelihood, with a mild prior on the weights."""
    count = len(values)
    # With the values as one row more, the factor's last row is what they are solved to.
    kernel = np.empty((count + 1, count + 1))
    np.exp(-far, out=kernel[:count, :count])
    kernel[np.diag_indices(count)] += noise
    kernel[count, :count] = kernel[:count, count] = values
    kernel[count, count] = _ABOVE
    try:
        lower = np.linalg.cholesky(kernel)
    except np.linalg.LinAlgError:
        return math.inf
    z = lower[count, :count]
    fit_and_size = 0.5 * float(z @ z) + float(np.log(np.diag(lower)[:count]).sum())
    return fit_and_size + PRIOR * float((np.log(axes) ** 2).sum())
