"""How fast is a schedule likely to be, judged by those that were timed?

A Gaussian process over the codes of schedules, with one weight a parameter (how much it matters) and one
for the family's cost model, chosen by marginal likelihood. It ranks candidates by expected improvement.
Plain numpy: a few milliseconds for a few hundred rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.search.coding import Codes, Coding

Floats = NDArray[np.float64]

FIT_STEPS = 40
WEIGHT_LEAST, WEIGHT_MOST = 0.02, 20.0
NOISE_LEAST, NOISE_MOST = 0.003, 0.5
# Weights that the data say nothing about stay near 1.
PRIOR = 0.1


@dataclass(frozen=True)
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
    """Distances between points, one for each axis."""

    def __init__(self, coding: Coding) -> None:
        self._spans = [float(len(axis.choices) - 1) if axis.ordered else None for axis in coding.axes]
        self.dimensions = len(coding.axes) + 1

    def apart(self, left: Sequence[Point], right: Sequence[Point]) -> Floats:
        """Shape (axes + 1, left, right): the share of an ordered axis' length, 1 for another label, and the
        difference of the predictions' logarithms."""
        a = np.array([p.codes for p in left], dtype=np.float32).reshape(len(left), -1).T
        b = np.array([p.codes for p in right], dtype=np.float32).reshape(len(right), -1).T
        found = np.empty((self.dimensions, len(left), len(right)))
        for axis, span in enumerate(self._spans):
            difference = np.abs(a[axis][:, None] - b[axis][None, :])
            found[axis] = difference > 0 if span is None else difference / span
        one = np.array([p.log_predicted for p in left])
        other = np.array([p.log_predicted for p in right])
        found[-1] = np.minimum(np.abs(one[:, None] - other[None, :]), 2.0)
        return found


def fit(metric: Metric, points: Sequence[Point], log_times: Sequence[float], seed: int) -> Weights:
    """Weights by a short random search, one at a time: a function of its arguments."""
    rng = np.random.default_rng(seed)
    apart = metric.apart(points, points)
    values = _standard(np.array(log_times))[0]
    axes, noise = np.ones(metric.dimensions), 0.05
    best = _cost(apart, values, axes, noise)
    # A cost model may say nothing about this problem: look at that first.
    deaf = axes.copy()
    deaf[-1] = WEIGHT_LEAST
    if (cost := _cost(apart, values, deaf, noise)) < best:
        axes, best = deaf, cost
    for step in range(FIT_STEPS):
        trial, trial_noise = axes.copy(), noise
        pick = step % (metric.dimensions + 2)
        if pick == metric.dimensions:
            trial *= math.exp(0.7 * rng.standard_normal())
        elif pick == metric.dimensions + 1:
            trial_noise = float(np.clip(noise * math.exp(rng.standard_normal()), NOISE_LEAST, NOISE_MOST))
        else:
            trial[pick] *= math.exp(1.2 * rng.standard_normal())
        trial = np.clip(trial, WEIGHT_LEAST, WEIGHT_MOST)
        cost = _cost(apart, values, trial, trial_noise)
        if cost < best:
            axes, noise, best = trial, trial_noise, cost
    return Weights(axes, noise)


class Surrogate:
    """What is known of a search; `believe` adds a point whose time is not known yet."""

    def __init__(
        self, metric: Metric, weights: Weights, points: Sequence[Point], log_times: Sequence[float]
    ) -> None:
        self._metric = metric
        self._weights = weights
        self._points = list(points)
        self._values, self._mean, self._scale = _standard(np.array(log_times))
        self._best = float(self._values.min())
        self._kernel = self._near(self._points, self._points)
        self._solve()

    def improvement(self, points: Sequence[Point]) -> Floats:
        """Expected improvement over the best so far, in units of the times' spread."""
        mean, deviation = self._predict(points)
        z = (self._best - mean) / deviation
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        below = 0.5 * (1 + np.array([math.erf(one / math.sqrt(2)) for one in z]))
        improvement: Floats = deviation * (z * below + density)
        return improvement

    def believe(self, points: Sequence[Point]) -> None:
        """Take the expected time of these for theirs, so that the next choice is made elsewhere."""
        if not points:
            return
        mean, _ = self._predict(points)
        across = self._near(self._points, points)
        self._kernel = np.block([[self._kernel, across], [across.T, self._near(points, points)]])
        self._points += points
        self._values = np.concatenate([self._values, mean])
        self._solve()

    def _near(self, left: Sequence[Point], right: Sequence[Point]) -> Floats:
        near: Floats = np.exp(-np.tensordot(self._weights.axes, self._metric.apart(left, right), 1))
        return near

    def _solve(self) -> None:
        noise = self._weights.noise * np.eye(len(self._points))
        self._inverse = np.linalg.inv(np.linalg.cholesky(self._kernel + noise))
        self._alpha = self._inverse.T @ (self._inverse @ self._values)

    def _predict(self, points: Sequence[Point]) -> tuple[Floats, Floats]:
        near = self._near(points, self._points)
        mean: Floats = near @ self._alpha
        known = self._inverse @ near.T
        variance = 1 + self._weights.noise - (known**2).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-9))


def _standard(values: Floats) -> tuple[Floats, float, float]:
    """Values with mean 0 and deviation 1, and what they were."""
    mean, scale = float(values.mean()), float(values.std())
    scale = scale if scale > 1e-9 else 1.0
    return (values - mean) / scale, mean, scale


def _cost(apart: Floats, values: Floats, axes: Floats, noise: float) -> float:
    """Negative logarithm of the marginal likelihood, with a mild prior on the weights."""
    kernel: Floats = np.exp(-np.tensordot(axes, apart, 1))
    kernel[np.diag_indices_from(kernel)] += noise
    try:
        lower = np.linalg.cholesky(kernel)
    except np.linalg.LinAlgError:
        return math.inf
    z = np.linalg.solve(lower, values)
    fit_and_size = 0.5 * float(z @ z) + float(np.log(np.diag(lower)).sum())
    return fit_and_size + PRIOR * float((np.log(axes) ** 2).sum())
