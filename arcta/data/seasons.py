"""Seasons: which periods the data repeats itself with, found before there is a model.

Seasons are taken out of the data one after the other. For irregular times and gaps the spectrum is Lomb and Scargle's with a mean
of its own: how much the squared error falls by waves of frequencies f, 2f, 3f. Such a family counts if it stands out of the noise
around it, white or red, as no frequency would by chance; then it is fitted together with the trend and those before it, and what is
left is looked at again. A period of the calendar (a day, a week, a year) is believed with less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .calendar import MONTHS, SECONDS, YEAR, Calendar
from .moments import moments
from .series import Series

CHANCE = 1e-3  # of a line where there is none, over all frequencies
LEAST = 0.01  # of what the trend leaves; a weaker season is not worth its name
CYCLES = 2.0  # a season must have come back that often
MOST_SEASONS, MOST_HARMONICS = 3, 12
LONG = 5_000  # observations
SIZES = 3  # waves that a season is looked for by: one to three harmonics
FINE = 4  # frequencies looked at for each that is independent
NAMED = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "year": YEAR}


class Season(NamedTuple):
    """A period in the data's unit of time, how many harmonics stand out, and their share of what the trend leaves."""

    period: float
    harmonics: int
    share: float
    name: str = ""

    def words(self, unit: str) -> str:
        share = "" if math.isnan(self.share) else f", {self.share:.0%} of what the trend leaves"
        return f"{self.period:.4g} {unit}".rstrip() + (f" (a {self.name})" if self.name else "") + share


class _Samples(NamedTuple):
    """One channel on a grid: where its observations lie, in steps of the grid from the first."""

    place: np.ndarray
    values: np.ndarray
    step: float

    @property
    def span(self) -> float:
        return (self.place[-1] - self.place[0] + 1) * self.step


def _samples(times: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"]) -> _Samples:
    """On the grid of the typical step, on a finer one if times are irregular; values in units of their deviation."""
    found = moments(values[:, None], np.ones((len(values), 1), bool))
    values = (values - found.mean) / found.unit
    step = float(np.median(np.diff(times)))
    at = (times - times[0]) / step
    if np.abs(at - np.round(at)).max() > 0.1:
        step, at = step / FINE, at * FINE
    return _Samples(np.round(at).astype(int), values, step)


def _spectrum(samples: _Samples, y: Float[np.ndarray, " n"], size: int) -> Float[np.ndarray, " frequencies"]:
    """Half of what a wave takes off Σ y², mean included, at the multiples of 1/(size · step)."""
    grid, seen = np.zeros(size), np.zeros(size)
    np.add.at(grid, samples.place, y - y.mean())
    np.add.at(seen, samples.place, 1.0)
    n, half = len(y), size // 2
    wave, window = np.fft.fft(grid)[:half], np.fft.fft(seen)
    twice = window[2 * np.arange(half) % size]
    c, s = window[:half].real, -window[:half].imag
    yc, ys = wave.real, -wave.imag
    cc = 0.5 * (n + twice.real) - c**2 / n
    ss = 0.5 * (n - twice.real) - s**2 / n
    cs = -0.5 * twice.imag - c * s / n
    determinant = cc * ss - cs**2
    power = (ss * yc**2 + cc * ys**2 - 2 * cs * yc * ys) / np.where(determinant > 1e-6 * n**2, determinant, np.inf)
    return np.maximum(0.5 * power, 0.0)


class _Floor(NamedTuple):
    """The noise's share at each frequency, and from how many others it is known."""

    frequency: Float[np.ndarray, " m"]
    level: Float[np.ndarray, " m"]
    known_by: Float[np.ndarray, " m"]

    def unlikely(self, frequency: float, ratio: float, size: int) -> float:
        """−log P(chance gives so many frequencies a mean ratio as large): the tail of a beta prime distribution, which is that of a
        sum of exponential numbers where the floor is known well."""
        from scipy.special import betainc

        ν = np.interp(frequency, self.frequency, self.known_by)
        return -math.log(max(float(betainc(ν, size, ν / (ν + ratio * size))), 1e-300))


def _floor(frequency: Float[np.ndarray, " m"], power: Float[np.ndarray, " m"]) -> _Floor:
    """White plus red noise, a + b/f^γ by Whittle's likelihood, and not below the running median. The white part is known from all
    frequencies, the red one from those within a factor of two."""
    from scipy.ndimage import median_filter
    from scipy.optimize import minimize

    some = np.unique(np.geomspace(1, len(power), 400).astype(int)) - 1
    f, p = frequency[some], np.maximum(power[some], 1e-9 * power.mean() + 1e-300)
    scale, middle = float(np.median(p)), float(np.median(f))

    def parts(θ: np.ndarray, f: np.ndarray) -> tuple[float, np.ndarray]:
        return scale * float(np.exp(θ[0])), scale * np.exp(θ[1]) * (f / middle) ** -np.clip(θ[2], 0.0, 4.0)

    usual = np.array([0.0, -6.0, 1.5])  # hardly any red noise, unless there is some

    def loss(θ: np.ndarray) -> float:
        s = sum(parts(θ, f))
        return float(np.mean(np.log(s) + p / s)) + 1e-3 * float(np.sum((θ - usual) ** 2))

    best = minimize(loss, [-1.0, -1.0, 1.5], method="Nelder-Mead", options={"maxiter": 120})
    white, red = parts(best.x, frequency)
    local = median_filter(power, max(FINE * 15, len(power) // 12) | 1, mode="nearest") / np.log(2)
    share = white / (white + red)
    return _Floor(frequency, np.maximum(white + red, local), share * frequency[-1] + (1 - share) * 1.5 * frequency)


class _Family(NamedTuple):
    """A fundamental frequency, in cycles per span, and how many of its harmonics are fitted."""

    frequency: float
    size: int

    @property
    def waves(self) -> list[float]:
        return [k * self.frequency for k in range(1, self.size + 1)]


class _Spectra:
    """The spectrum of what some families and the trend leave, on the frequencies that a season may have."""

    def __init__(self, samples: _Samples):
        self.samples = samples
        self.t = samples.place * samples.step / samples.span
        cells = samples.place[-1] + 1
        self.size = 1 << int(np.ceil(np.log2(2 * FINE * cells)))
        self.fineness = samples.span / (self.size * samples.step)
        frequency = np.arange(self.size // 2) * self.fineness
        self.highest = 0.5 * cells / float(np.median(np.diff(samples.place)))
        self.wanted = (frequency >= CYCLES - 0.5) & (frequency <= self.highest)
        self.frequency = frequency[self.wanted]

    @property
    def independent(self) -> float:
        """How many frequencies there are to choose from."""
        return len(self.frequency) * self.fineness

    def fit(self, families: Sequence[_Family]) -> tuple[Float[np.ndarray, " n"], list[float]]:
        """What is left, and half of what each family takes off the squares beside the others."""
        # A straight line and the slowest waves are no season.
        slow = [np.cos(np.pi * k * self.t) for k in range(4)]
        waves = [g(2 * np.pi * f * self.t) for family in families for f in family.waves for g in (np.cos, np.sin)]
        design, x = np.stack([*slow, self.t, *waves], axis=1), self.samples.values
        inverse = np.linalg.pinv(design.T @ design, rcond=1e-10, hermitian=True)
        weights = inverse @ (design.T @ x)
        powers, begin = [], 5
        for family in families:
            own = slice(begin, begin + 2 * family.size)
            powers.append(0.5 * float(weights[own] @ np.linalg.pinv(inverse[own, own]) @ weights[own]))
            begin = own.stop
        return x - design @ weights, powers

    def of(self, left: Float[np.ndarray, " n"]) -> Float[np.ndarray, " frequencies"]:
        return _spectrum(self.samples, left, self.size)[self.wanted]

    def best(self, left: Float[np.ndarray, " n"], taken: Sequence[_Family]) -> _Family:
        """The family that stands out most, by the sum of its waves' shares over the noise's."""
        from scipy.special import gammaincc

        power = self.of(left)
        ratio = power / _floor(self.frequency, power).level
        for family in taken:
            for f in family.waves:
                ratio[np.abs(self.frequency - f) < 0.7] = 0.0
        found = []
        for size in range(1, SIZES + 1):
            fits = self.frequency * size <= self.highest
            f = self.frequency[fits]
            total = sum(np.interp(k * f, self.frequency, ratio) for k in range(1, size + 1))
            stands = -np.log(np.maximum(gammaincc(size, total), 1e-300))
            at = int(np.argmax(stands))
            found.append((float(stands[at]) - np.log(size), _Family(float(f[at]), size)))
        return max(found)[1]

    def stand(self, families: Sequence[_Family], spent: float) -> Float[np.ndarray, " families"]:
        """−log P(chance) of each beside the others. `spent`: what a search has taken of the noise beyond two parameters a wave, for
        the best of many frequencies take more than their share."""
        left, powers = self.fit(families)
        share = 1 - (spent + 2 * sum(family.size for family in families)) / len(left)
        floor = _floor(self.frequency, self.of(left))
        found = []
        for family, power in zip(families, powers, strict=True):
            noise = float(np.mean(np.interp(family.waves, self.frequency, floor.level))) / max(share, 0.1)
            found.append(floor.unlikely(family.frequency, float(power) / noise / family.size, family.size))
        return np.array(found)

    def polished(self, family: _Family, others: Sequence[_Family]) -> _Family:
        """The same where the others want it; in long series, which tell their lines apart, where the spectrum is highest."""
        if len(self.t) >= LONG:
            power = self.of(self.fit(others)[0])
            near = family.frequency + np.linspace(-0.5, 0.5, 101)
            sums = sum(np.interp(k * near, self.frequency, power) for k in range(1, family.size + 1))
            return family._replace(frequency=float(near[int(np.argmax(sums))]))
        near = family.frequency + np.linspace(-0.6, 0.6, 13)
        for width in (0.1, 0.01):
            near = near[(near >= CYCLES - 0.5) & (near * family.size <= self.highest)]
            powers = [self.fit([*others, family._replace(frequency=float(f))])[1][-1] for f in near]
            family = family._replace(frequency=float(near[int(np.argmax(powers))]))
            near = family.frequency + width * np.linspace(-0.8, 0.8, 9)
        return family

    def _strong(self, numbers: np.ndarray, frequency: float, left: np.ndarray) -> Float[np.ndarray, " numbers"]:
        """By how much the waves of these numbers stand out of what is left; 0 if no more than by chance."""
        power, f = self.of(left), numbers * frequency
        level = _floor(self.frequency, power).level
        ratio = np.where(f >= self.frequency[0], np.interp(f, self.frequency, power / level), 0.0)
        return np.where(ratio > np.log(1 / CHANCE), ratio, 0.0)

    def whole(self, family: _Family, others: Sequence[_Family]) -> _Family:
        """With the higher harmonics that stand out, too; or the family at half or a third of the frequency that this one belongs
        to, if two more of its waves stand out."""
        left, _ = self.fit([*others, family])
        k = np.arange(family.size + 1, min(MOST_HARMONICS, int(self.highest / family.frequency)) + 1)
        for number in k[self._strong(k, family.frequency, left) > 0]:
            if (
                number <= family.size + 2
            ):  # one harmonic may be missing in between; what is far from the others is another season
                family = family._replace(size=int(number))
        left, found = self.fit([*others, family])[0], []
        for m in (2, 3):
            f = family.frequency / m
            k = np.arange(1, min(MOST_HARMONICS, int(self.highest / f)) + 1)
            gain = self._strong(k, f, left) * (k % m > 0)
            if f >= CYCLES - 0.5 and np.sum(gain > 0) >= 2:
                found.append(
                    (float(gain.sum()), _Family(f, int(max(k[gain > 0].max(), min(m * family.size, MOST_HARMONICS)))))
                )
        return max(found)[1] if found else family


def _multiple(fast: _Family, slow: _Family) -> int:
    """Which harmonic of the slow one the fast one is; 0 if none."""
    k = round(fast.frequency / slow.frequency)
    return k if k and abs(fast.frequency - k * slow.frequency) <= min(0.5, slow.frequency / 8) else 0


def _stand_out(
    samples: _Samples, chance: float, expected: Sequence[float]
) -> tuple[list[tuple[_Family, float]], float]:
    """The families that stand out with their power, and Σ of squares that the trend leaves.

    The strongest are taken one after the other, significant or not: one may hide what another is seen by. Those that do not stand
    out of the noise that is left are then given back, the weakest first.
    """
    spectra = _Spectra(samples)
    left, _ = spectra.fit([])
    n, total = len(left), float(np.sum(left**2))
    if spectra.independent < 4 or total <= 1e-20 * n:
        return [], 1.0
    taken: list[_Family] = []
    cost = 2 * np.log(max(spectra.independent, 2.0))
    while len(taken) < MOST_SEASONS + 2:
        taken.append(spectra.best(left, taken))
        if cost * len(taken) + 2 * sum(family.size for family in taken) > 0.6 * n:
            taken.pop()
            break
        for k in range(len(taken)) if n < 1_000 else [-1]:
            others = [family for family in taken if family is not taken[k]]
            taken[k] = spectra.polished(taken[k], others)
        taken[-1] = spectra.whole(taken[-1], taken[:-1])
        left, _ = spectra.fit(taken)
    needed = np.log(SIZES * spectra.independent) - np.log(chance)
    while taken and (stands := spectra.stand(taken, cost * len(taken))).min() < needed:
        taken.pop(int(np.argmin(stands)))
    kept = list(zip(taken, spectra.fit(taken)[1], strict=True))
    return _with_expected(spectra, kept, expected, chance), total


def _with_expected(
    spectra: _Spectra, kept: list[tuple[_Family, float]], expected: Sequence[float], chance: float
) -> list[tuple[_Family, float]]:
    """The periods that a calendar suggests are no search: they need less to be believed."""
    for f in expected:
        families = [family for family, _ in kept]
        if CYCLES <= f <= spectra.highest and not any(_multiple(_Family(f, 1), other) for other in families):
            more = [*families, _Family(f, 2 if 2 * f <= spectra.highest else 1)]
            if spectra.stand(more, 0.0)[-1] > -np.log(10 * chance):
                kept = list(zip(more, spectra.fit(more)[1], strict=True))
    return kept


def candidates(calendar: Calendar | None) -> dict[str, float]:
    """The periods that dates suggest, in the calendar's unit."""
    if calendar is None:
        return {}
    if calendar.unit in MONTHS:
        return {"year": 12 / MONTHS[calendar.unit]}
    day = SECONDS["d"] / SECONDS[calendar.unit]
    return {name: days * day for name, days in NAMED.items()}


def _named(family: _Family, known: dict[str, float]) -> tuple[_Family, str]:
    """A family as that of the fastest known frequency that it is, or is a harmonic of."""
    for f, name in sorted(((f, name) for name, f in known.items() if f >= CYCLES), reverse=True):
        k = max(round(family.frequency / f), 1)
        if k <= 2 * MOST_HARMONICS and abs(family.frequency - k * f) <= min(0.75, f / 8):
            return _Family(f, k * family.size), name
    return family, ""


def _in_channel(samples: _Samples, known: dict[str, float], chance: float) -> list[Season]:
    """Families that are harmonics of others are one season. The harmonics of a shape fall off, the second need not: what is too
    strong for that is a season of its own."""
    cycles = {name: samples.span / period for name, period in known.items()}
    found, total = _stand_out(samples, chance, sorted(cycles.values(), reverse=True))
    seasons: list[tuple[_Family, float, str]] = []
    for family, power in sorted(found, key=lambda pair: -pair[1]):
        family, name = _named(family, cycles)
        for i, (other, before, theirs) in enumerate(seasons):
            up, down = _multiple(family, other), _multiple(other, family)
            free = not name and not theirs
            if up == 1 or (
                free and (up == 2 or (2 < up <= 4 and power < 0.5 * before) or (up and power < 0.05 * before))
            ):
                seasons[i] = (other._replace(size=max(other.size, up * family.size)), before + power, theirs)
                break
            if free and down in (2, 3) and power > 0.1 * before:
                seasons[i] = (family._replace(size=max(down * other.size, family.size)), before + power, "")
                break
        else:
            seasons.append((family, power, name))
    return [
        Season(samples.span / family.frequency, family.size, 2 * power / total, name)
        for family, power, name in seasons
        if 2 * power > LEAST * total
    ][:MOST_SEASONS]


def _joined(data: Sequence[Series]) -> Sequence[Series]:
    """Series that follow one another are a long one that was cut: a season may be longer than each."""
    ordered = sorted(data, key=lambda item: item.times[0])
    if len(data) == 1 or any(a.times[-1] >= b.times[0] for a, b in itertools.pairwise(ordered)):
        return data
    times, values = (np.concatenate([getattr(item, name) for item in ordered]) for name in ("times", "values"))
    mask = np.concatenate([item.mask for item in ordered])
    return [Series(times, np.where(mask, values, np.nan), channels=data[0].channels)]


def find_seasons(data: Sequence[Series]) -> list[Season]:
    """The periods with which the data repeats itself, the strongest first; none where nothing stands out of the noise."""
    known, data = candidates(data[0].calendar), _joined(data)
    places = [(item, c) for item in data for c in range(len(item.channels)) if item.mask[:, c].sum() >= 12]
    places = [places[i] for i in np.unique(np.linspace(0, len(places) - 1, 8).astype(int))] if places else []
    found: list[list[Season]] = []
    for item, c in places:
        seen = np.flatnonzero(item.mask[:, c])[-6_000:]
        found.append(_in_channel(_samples(item.times[seen], item.values[seen, c]), known, CHANCE / len(places)))
    merged: list[Season] = []
    for season in sorted((s for each in found for s in each), key=lambda s: -s.share):
        if not any(abs(season.period / other.period - 1) < 0.02 for other in merged):
            alike = [s for each in found for s in each if abs(s.period / season.period - 1) < 0.02]
            share = sum(s.share for s in alike) / len(places)
            if len(alike) >= 0.2 * len(places) and share > LEAST:
                merged.append(season._replace(share=share, harmonics=max(s.harmonics for s in alike)))
    return sorted(merged, key=lambda s: -s.share)[:MOST_SEASONS]
