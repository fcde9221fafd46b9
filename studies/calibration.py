"""Simulation-based calibration: are the posteriors that arcta reports as wide as they should be?

    arcta study calibration

Four laws that a user might write down. Parameters, noise, diffusion and start are drawn from the priors that the fit is given, a
series is simulated with them, the fit sees the series, and the truth is ranked within each posterior that it reports: of
parameters, noise and diffusion (`fit.parameters()`), of states at the start, between two observations and at the end
(`fit.smooth`). Were posteriors exact, ranks would be uniform and z = Φ⁻¹(rank) standard normal, whatever the priors. For the
linear law the exact posterior is computed too: its ranks say whether the study itself is right. Forecasts by defaults: where
observations fall in them, by horizon.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import arcta
from arcta.model.reading import read_data
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, INK, MUTED, SECOND, new_figure
from arcta.task.run import describe
from arcta.task.train import Task, train_task

ROWS, SUBSTEPS, STEPS = 128, 20, 600
REPLICATES, BLOCK = 64, 32
DRAWS = 1999  # of smoothed states
ERROR_RATE = 0.01  # of all tests of uniformity together, were all posteriors exact
# Of forecasts by defaults: data sets of each system, the most that `--seeds` may ask for, rows to learn from, origins after those,
# and steps ahead.
DATA_SETS, MOST, LEARNT, ORIGINS, LEADS = 3, 6, 200, 12, (1, 2, 4, 8, 16)
FORECAST = ("ou", "lotka-volterra")

LogNormal, Normal = arcta.LogNormal, arcta.Normal
SYSTEMS: dict[str, dict[str, Any]] = {
    "ou": {
        "drift": lambda t, z, p, u: [p["rate"] * (p["level"] - z[0])],
        "parameters": {"rate": LogNormal(1.0, 0.5), "level": Normal(0.0, 1.0)},
        "diffusion": (0.5, 0.5),
        "noise": (0.2, 0.5),
        "initial": ([0.0], [1.0]),
        "step": 0.2,
    },
    "double-well": {
        "drift": lambda t, z, p, u: [p["push"] * z[0] - p["wall"] * z[0] ** 3],
        "parameters": {"push": LogNormal(1.0, 0.3), "wall": LogNormal(1.0, 0.3)},
        "diffusion": (0.5, 0.3),
        "noise": (0.2, 0.3),
        "initial": ([0.0], [1.0]),
        "step": 0.2,
    },
    "lotka-volterra": {  # of the logarithms of both populations
        "drift": lambda t, z, p, u: [p["a"] - p["b"] * jnp.exp(z[1]), p["d"] * jnp.exp(z[0]) - p["c"]],
        "parameters": {name: LogNormal(median, 0.3) for name, median in zip("abcd", (0.7, 1.3, 1.0, 1.0), strict=True)},
        "diffusion": (0.01, 0.5),
        "noise": (0.1, 0.3),
        "initial": ([0.0, -0.7], [0.3, 0.3]),
        "step": 0.25,
    },
    "pendulum": {
        "drift": lambda t, z, p, u: [z[1], -p["pull"] * jnp.sin(z[0]) - p["friction"] * z[1]],
        "parameters": {"pull": LogNormal(1.0, 0.3), "friction": LogNormal(0.1, 0.5)},
        "diffusion": (0.02, 0.5),
        "noise": (0.1, 0.3),
        "initial": ([1.0, 0.0], [0.3, 0.3]),
        "step": 0.2,
    },
}  # fmt: skip
MOMENTS = {"start": 0, "between": ROWS - 1, "end": 2 * (ROWS - 1)}  # in half steps, of which every other is observed
Arrays = dict[str, Any]


def specification(system: str) -> arcta.LatentSDE:
    settings = SYSTEMS[system]
    mean, std = (np.array(part) for part in settings["initial"])
    return arcta.LatentSDE(
        decoder="identity",
        drift=settings["drift"],
        parameters=settings["parameters"],
        noise=LogNormal(*settings["noise"]),
        diffusion_prior=LogNormal(*settings["diffusion"]),
        initial=(mean, std),
    )


def channels(system: str) -> list[str]:
    return [f"x{i}" for i in range(len(SYSTEMS[system]["initial"][0]))]


def draw_truth(system: str, count: int, rng: np.random.Generator) -> Arrays:
    """Draws from the priors by the names that `fit.parameters()` gives them, `(count,)` each."""
    settings, names = SYSTEMS[system], channels(system)
    levels = stats.norm.cdf(rng.standard_normal((len(settings["parameters"]) + 2 * len(names), count)))
    priors = dict(settings["parameters"])
    priors |= {f"diffusion[{name}]": LogNormal(*settings["diffusion"]) for name in names}
    priors |= {f"noise[{name}]": LogNormal(*settings["noise"]) for name in names}
    return {
        name: np.asarray(prior.prior_quantile(jnp.asarray(u)))
        for (name, prior), u in zip(priors.items(), levels, strict=True)
    }


@functools.partial(jax.jit, static_argnames="system")
def simulate(system: str, truth: Arrays, start: jax.Array, kicks: jax.Array, step: float) -> jax.Array:
    """Heun's scheme for all replicates at once: states `(half steps, axes, replicates)`, one for each of `kicks` (half steps - 1,
    substeps, axes, replicates)."""
    dispersion = jnp.sqrt(jnp.stack([truth[f"diffusion[{name}]"] for name in channels(system)]) * step)

    def field(z: jax.Array) -> jax.Array:
        return jnp.stack(SYSTEMS[system]["drift"](0.0, z, truth, None))

    def substep(z: jax.Array, kick: jax.Array) -> tuple[jax.Array, None]:
        slope, pushed = field(z), dispersion * kick
        return z + 0.5 * step * (slope + field(z + step * slope + pushed)) + pushed, None

    def half_step(z: jax.Array, kicks: jax.Array) -> tuple[jax.Array, jax.Array]:
        z, _ = jax.lax.scan(substep, z, kicks)
        return z, z

    _, states = jax.lax.scan(half_step, start, kicks)
    return jnp.concatenate([start[None], states])


def replicates(system: str, count: int, rows: int = ROWS) -> tuple[Arrays, np.ndarray, list[arcta.Series]]:
    """What was drawn, the states every half step `(half steps, axes, replicates)`, and the series to fit."""
    settings, names = SYSTEMS[system], channels(system)
    rng = np.random.default_rng([2024, list(SYSTEMS).index(system), rows])
    truth, size = draw_truth(system, count, rng), (len(names), count)
    mean, std = (np.array(part)[:, None] for part in settings["initial"])
    start = mean + std * rng.standard_normal(size)
    kicks = rng.standard_normal((2 * (rows - 1), SUBSTEPS, *size))
    states = np.asarray(simulate(system, truth, start, kicks, settings["step"] / 2 / SUBSTEPS))
    noise = np.stack([truth[f"noise[{name}]"] for name in names])
    values = states[::2] + noise * rng.standard_normal((rows, *size))
    times = settings["step"] * np.arange(rows)
    return truth, states, [arcta.Series(times, values[:, :, i], channels=names, name=str(i)) for i in range(count)]


def fit_alike(system: str, steps: int, panel: list[arcta.Series], chosen: slice) -> list[arcta.Fit]:
    """A fit of each chosen series alone, all in the units and with the windows that suit the panel: one program for all."""
    spec, training = specification(system), arcta.Training(steps=steps, log_every=steps, validate_every=steps)
    read, fits = read_data(spec, panel), []
    for series in panel[chosen]:
        task = Task(models=[spec], trainings=[training], keys=[jax.random.key(0)], whole=[series], series=[series],
                    cuts={}, read=read, about={})  # fmt: skip
        try:
            fits.append(train_task(task, progress=False)[0])
        except arcta.TrainingDiverged:  # then `arcta.fit` takes the encoder's posterior
            plain = dataclasses.replace(task, models=[dataclasses.replace(spec, posterior="amortised")])
            fits.append(train_task(plain, progress=False)[0])
    return fits


def table_of(fit: arcta.Fit) -> dict[str, tuple[float, float]]:
    """Median and standard deviation from the table that users see, of the logarithm where the posterior is log-normal."""
    table, found = fit.parameters(), {}
    for name in table.index:
        low, middle, high = on_scale(name, table.loc[name, ["q5", "median", "q95"]].to_numpy(float))
        found[name] = (float(middle), float(high - low) / (2 * stats.norm.ppf(0.95)))
    return found


def on_scale(name: str, values: np.ndarray) -> np.ndarray:
    """Their logarithms, but of a level, which has a normal prior."""
    return values if name == "level" else np.log(values)


def reported(fit: arcta.Fit, truth: Arrays, index: int) -> dict[str, float]:
    """z of the true parameters."""
    found = table_of(fit)
    return {name: float((on_scale(name, truth[name][index]) - found[name][0]) / found[name][1]) for name in truth}


def smoothed(system: str, fit: arcta.Fit, states: np.ndarray) -> dict[str, float]:
    """z of the true states among draws of the smoothed ones."""
    at = np.array(list(MOMENTS.values()))
    drawn = fit.smooth(fit.context[0], 0.5 * SYSTEMS[system]["step"] * at, num_samples=DRAWS, key=1).signal
    below = np.sum(drawn < states[at], axis=0)
    z = stats.norm.ppf((below + 0.5) / (DRAWS + 1))
    return {
        f"{name} {moment}": float(z[k, i])
        for i, name in enumerate(channels(system))
        for k, moment in enumerate(MOMENTS)
    }


def log_posterior(series: arcta.Series, φ: np.ndarray) -> np.ndarray:
    """Of the linear law, exactly: a Kalman filter for all rows (log rate, level, log q, log noise) of `φ` at once."""
    (rate, level, q, σ), settings = (np.exp(φ[:, 0]), φ[:, 1], np.exp(φ[:, 2]), np.exp(φ[:, 3])), SYSTEMS["ou"]
    decay = np.exp(-rate * settings["step"])
    spread = q * (1 - decay**2) / (2 * rate)
    mean, variance = (np.full(len(φ), float(part[0])) for part in settings["initial"])
    total = -0.5 * np.sum(((φ - PRIOR_MEAN) / PRIOR_STD) ** 2, axis=1)
    for i, x in enumerate(series.values[:, 0]):
        if i:
            mean, variance = level + decay * (mean - level), decay**2 * variance + spread
        s = variance + σ**2
        total -= 0.5 * ((x - mean) ** 2 / s + np.log(s))
        mean, variance = mean + variance / s * (x - mean), variance * σ**2 / s
    return total


PRIOR_MEAN = np.array([0.0, 0.0, np.log(SYSTEMS["ou"]["diffusion"][0]), np.log(SYSTEMS["ou"]["noise"][0])])
PRIOR_STD = np.array([0.5, 1.0, SYSTEMS["ou"]["diffusion"][1], SYSTEMS["ou"]["noise"][1]])
EXACT = ("rate", "level", "diffusion[x0]", "noise[x0]")


def exactly(series: arcta.Series, truth: Arrays, index: int, rng: np.random.Generator) -> dict[str, Any]:
    """z of the truth in the exact posterior of the linear law, and its standard deviation (of logarithms): importance sampling
    with a Student-t that is moved to the posterior's moments five times."""

    def draw(mean: np.ndarray, root: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        away = rng.standard_normal((count, 4)) / np.sqrt(rng.chisquare(5, (count, 1)) / 5)
        φ = mean + away @ root.T
        log = log_posterior(series, φ) + 4.5 * np.log1p(np.sum(away**2, axis=1) / 5)
        weight = np.exp(log - log.max())
        return φ, weight / weight.sum()

    φ, weight = draw(PRIOR_MEAN, np.diag(PRIOR_STD), 20_000)
    for _ in range(5):
        centred = φ - weight @ φ
        root = np.linalg.cholesky(1.2 * (weight * centred.T) @ centred + 1e-9 * np.eye(4))
        φ, weight = draw(weight @ φ, root, 5_000)
    true = np.array([on_scale(name, truth[name][index]) for name in EXACT])
    z = stats.norm.ppf(np.clip(weight @ (φ < true), 1e-4, 1 - 1e-4))
    std = np.sqrt(weight @ (φ - weight @ φ) ** 2)
    return dict(zip(EXACT, zip(z, std, strict=True), strict=True))


def measure_posteriors(steps: int, count: int, system: str, begin: int, end: int) -> dict[str, Any]:
    """z of everything for some of the replicates; of the linear law also in the exact posterior, and our widths over its."""
    truth, states, panel = replicates(system, count)
    fits = fit_alike(system, steps, panel, slice(begin, end))
    rows = [
        reported(fit, truth, begin + i) | smoothed(system, fit, states[:, :, begin + i]) for i, fit in enumerate(fits)
    ]
    found = {"z": {name: [row[name] for row in rows] for name in rows[0]}}
    if system == "ou":
        rng = np.random.default_rng(begin)
        exact = [exactly(panel[begin + i], truth, begin + i, rng) for i in range(len(fits))]
        ours = [table_of(fit) for fit in fits]
        found["exact"] = {name: [row[name][0] for row in exact] for name in EXACT}
        found["width"] = {
            name: [w[name][1] / row[name][1] for w, row in zip(ours, exact, strict=True)] for name in EXACT
        }
    encoders = sum(fit.spec.posterior == "amortised" for fit in fits)
    return found | {"encoders": encoders, "seconds": float(np.median([fit.seconds for fit in fits]))}


def measure_forecasts(training: arcta.Training, system: str, index: int) -> dict[str, Any]:
    """Where later observations fall in forecasts by defaults, `(leads, origins, channels)`."""
    _, _, panel = replicates(system, MOST, LEARNT + ORIGINS * LEADS[-1])
    series = panel[index]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = arcta.fit(arcta.LatentSDE(), series.at_rows(slice(0, LEARNT)), training=training, progress=False)
    ranks = []
    for origin in LEARNT + LEADS[-1] * np.arange(ORIGINS):
        rows = origin - 1 + np.array(LEADS)
        paths = fit.forecast(
            series.times[rows], given=series.at_rows(slice(origin - LEARNT, origin)), num_samples=999, key=int(origin)
        )
        ranks.append((np.sum(paths.observations < series.values[rows], axis=0) + 0.5) / 1000)
    return {"pit": np.stack(ranks, axis=1), "structure": fit.by_structure}


def judge(z: Sequence[float] | np.ndarray, level: float) -> dict[str, Any]:
    """Mean and standard deviation of z, what 50 and 90 % intervals hold, and two tests, each at `level`: of Kolmogorov and Smirnov
    against the uniform law, and of Σ z² against χ²."""
    found, count = np.array(z), len(z)
    square = stats.chi2.cdf(np.sum(found**2), count)
    p = min(float(stats.kstest(found, "norm").pvalue), 2 * min(square, 1 - square))
    return {
        "mean": float(found.mean()),
        "std": float(found.std(ddof=1)),
        "inside_50": float(np.mean(np.abs(found) < stats.norm.ppf(0.75))),
        "inside_90": float(np.mean(np.abs(found) < stats.norm.ppf(0.95))),
        "p": p,
        "uniform": bool(p > level),
    }


def detectable(count: int, level: float, num_draws: int = 4000) -> dict[str, float]:
    """The bias, and the factors between true and reported standard deviation, that one of the tests finds in nine of ten cases."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((num_draws, count))
    ends, band = stats.chi2.ppf([level / 2, 1 - level / 2], count), stats.kstwo.ppf(1 - level, count)

    def power(shift: float, factor: float) -> float:
        x = np.sort(shift + factor * z, axis=1)
        u, square, steps = stats.norm.cdf(x), np.sum(x**2, axis=1), np.arange(count + 1) / count
        distance = np.maximum(np.max(steps[1:] - u, axis=1), np.max(u - steps[:-1], axis=1))
        return float(np.mean((square < ends[0]) | (square > ends[1]) | (distance > band)))

    def least(shift: float, log_factor: float) -> float:
        return next((x for x in 0.02 * np.arange(1, 100) if power(x * shift, np.exp(x * log_factor)) >= 0.9), np.nan)

    return {"bias": least(1, 0), "narrow": float(np.exp(least(0, 1))), "wide": float(np.exp(-least(0, -1)))}


def posteriors(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, dict[str, list[float]]]]:
    """What the tests say of each quantity of each system, and z; blocks of replicates together."""
    z: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        here = z.setdefault(row["system"], {name: [] for name in row["z"]})
        for name, values in row["z"].items():
            here[name] += values
    level = ERROR_RATE / (2 * sum(map(len, z.values())))
    return [{"system": s, "quantity": n, **judge(x, level)} for s, of in z.items() for n, x in of.items()], z


def kind(name: str) -> str:
    return "state" if " " in name else "noise, diffusion" if "[" in name else "parameter"


COLOURS = {"parameter": ACCENT, "noise, diffusion": SECOND, "state": MUTED}


def draw_ranks(axis: Any, ranks: np.ndarray, level: float, **style: Any) -> None:
    """How far the fraction of ranks up to each point is from that point, and the band that a uniform law leaves with probability
    `level`."""
    u, band = np.sort(ranks), stats.kstwo.ppf(1 - level, len(ranks))
    steps = np.repeat(np.arange(len(u) + 1) / len(u), 2)[1:-1]
    axis.plot(np.repeat(u, 2), steps - np.repeat(u, 2), linewidth=1.1, **style)
    axis.set_ylim(-1.6 * band, 1.6 * band)
    for end in (-band, band):
        axis.axhline(end, color=INK, linewidth=0.8, linestyle="--")


def posterior_figure(z: dict[str, dict[str, list[float]]], level: float) -> Any:
    drawn, axes = new_figure(-(-len(z) // 2), 2, width=10.0, height=2.8)
    for axis, (system, of) in zip(axes.flat, z.items(), strict=False):
        shown: set[str] = set()
        for name, values in of.items():
            label = None if kind(name) in shown else kind(name)
            shown.add(kind(name))
            draw_ranks(axis, stats.norm.cdf(values), level, color=COLOURS[kind(name)], label=label)
        axis.set_title(system, fontsize=10, color=INK)
        axis.set_xlabel("rank of the truth in its posterior", fontsize=9)
    axes[0, 0].set_ylabel("fraction below − rank", fontsize=9)
    axes[0, 0].legend(frameon=False, fontsize=8, ncols=3)
    return drawn


def forecast_figure(pits: dict[str, np.ndarray], level: float) -> Any:
    panels = [(system, i) for system, pit in pits.items() for i in range(pit.shape[2])]
    drawn, axes = new_figure(1, len(panels), width=11.0, height=3.0)
    for axis, (system, i) in zip(axes[0], panels, strict=True):
        for lead, ranks, shade in zip(LEADS, pits[system], np.linspace(0.3, 1.0, len(LEADS)), strict=True):
            label = f"{lead} step{'s' if lead > 1 else ''} ahead"
            draw_ranks(axis, ranks[:, i], level, color=ACCENT, alpha=float(shade), label=label)
        axis.set_title(f"{system}, {channels(system)[i]}", fontsize=10, color=INK)
        axis.set_xlabel("rank of the observation in its forecast", fontsize=9)
    axes[0, 0].set_ylabel("fraction below − rank", fontsize=9)
    axes[0, 0].legend(frameon=False, fontsize=8)
    return drawn


def forecasts(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """What the tests say of each channel and lead, and the ranks `(leads, origins, channels)` of each system."""
    systems = dict.fromkeys(row["system"] for row in rows)
    pits = {s: np.concatenate([np.array(row["pit"]) for row in rows if row["system"] == s], axis=1) for s in systems}
    level = ERROR_RATE / (2 * len(LEADS) * sum(pit.shape[2] for pit in pits.values()))
    found = [
        {"system": system, "channel": channel, "lead": lead, **judge(stats.norm.ppf(ranks[:, i]), level)}
        for system, pit in pits.items()
        for i, channel in enumerate(channels(system))
        for lead, ranks in zip(LEADS, pit, strict=True)
    ]
    return found, pits


def shown(found: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Rows of a page's table."""
    return [
        {
            **{name: str(row[name]) for name in ("system", "quantity", "channel", "lead") if name in row},
            "bias": f"{row['mean']:+.2f}",
            "true spread / reported": f"{row['std']:.2f}",
            "inside 50 %": f"{100 * row['inside_50']:.0f} %",
            "inside 90 %": f"{100 * row['inside_90']:.0f} %",
            "uniform": "yes" if row["uniform"] else f"no (p = {row['p']:.0e})",
        }
        for row in found
    ]


def exact_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The linear law's exact posterior: whether the study is right, and how wide ours is beside it."""
    part = [row for row in rows if "exact" in row]
    return [
        {
            "quantity": name,
            "bias of the exact": float(np.mean(z := np.concatenate([row["exact"][name] for row in part]))),
            "true spread / exact": float(np.std(z, ddof=1)),
            "p": judge(z, 0.0)["p"],
            "ours / exact": float(np.median(np.concatenate([row["width"][name] for row in part]))),
        }
        for name in EXACT
    ]


def priors_of(system: str) -> list[dict[str, str]]:
    """What is drawn, and from what, in words."""
    settings = SYSTEMS[system]
    told = {name: prior_of(name, settings) for name in (*settings["parameters"], "diffusion", "noise")}
    told |= {
        f"{name} at the start": f"normal, {mean:g} ± {std:g}"
        for name, mean, std in zip(channels(system), *settings["initial"], strict=True)
    }
    return [{"system": system, "quantity": name, "prior": words} for name, words in told.items()]


def prior_of(name: str, settings: dict[str, Any]) -> str:
    prior = settings["parameters"].get(name) or LogNormal(*settings[name])
    low, median, high = (float(prior.prior_quantile(p)) for p in (0.05, 0.5, 0.95))
    law = "normal" if name == "level" else "log-normal"
    return f"{law}, median {median:.3g}, 90 % in {low:.3g} … {high:.3g}"


def rates(summary: dict[str, Any], count: int) -> list[dict[str, str]]:
    """What the tests can and cannot see."""
    power = summary["detectable"]
    return [
        {
            "replicates": str(count),
            "tests": str(summary["tests"]),
            "false alarms": f"{100 * ERROR_RATE:g} % in all, {summary['level']:.1e} each",
            "found in nine of ten cases": f"a bias of {power['bias']:.2f} reported standard deviations; a true spread of "
            f"{power['narrow']:.2f} or {power['wide']:.2f} times the reported",
            "standard error of a spread": f"{100 / np.sqrt(2 * count):.0f} %",
        }
    ]


def run(study: Study) -> None:
    systems, count, steps = (["ou"], 4, 40) if study.quick else (list(SYSTEMS), REPLICATES, STEPS)
    training = arcta.Training(steps=40 if study.quick else arcta.Training().steps)
    settings = {
        "models": {system: describe(specification(system)) for system in systems},
        "priors": [row for system in systems for row in priors_of(system)],
        "rows": ROWS, "steps": steps, "replicates": count, "quick": study.quick,
    }  # fmt: skip
    blocks = [{"system": s, "begin": b, "end": min(b + BLOCK, count)} for s in systems for b in range(0, count, BLOCK)]
    rows = study.measure(blocks, functools.partial(measure_posteriors, steps, count), settings)
    jobs = [
        {"system": s, "index": i}
        for s in FORECAST[: len(systems)]
        for i in range(min(study.num_seeds(DATA_SETS), MOST))
    ]
    asked = {"training": repr(training), "learnt": LEARNT, "origins": ORIGINS, "leads": LEADS}
    ahead = study.measure(jobs, functools.partial(measure_forecasts, training), asked)
    (found, z), (later, pits), exact = posteriors(rows), forecasts(ahead), exact_table(rows)
    level = ERROR_RATE / (2 * len(found))
    power = detectable(count, level, 200 if study.quick else 4000)
    table = [row for row in found if kind(row["quantity"]) != "state"]
    summary = {
        "posteriors": found, "exact": exact, "forecasts": later, "tests": 2 * len(found), "level": level, "detectable": power,
        "not_uniform": sum(not row["uniform"] for row in found), "structures": sum(row["structure"] for row in ahead),
        "encoders": sum(row.get("encoders", 0) for row in rows),
        "table": {name: [f(row[name] for row in table) for f in (min, max)] for name in ("std", "mean")},
    }  # fmt: skip
    study.save_figure("posteriors", posterior_figure(z, level))
    study.save_figure("forecasts", forecast_figure(pits, ERROR_RATE / (2 * len(later))))
    study.finish(summary, {
        "priors": markdown([row for system in systems for row in priors_of(system)]),
        "rates": markdown(rates(summary, count)),
        "posteriors": markdown(shown(found)),
        "exact": markdown([{k: v if isinstance(v, str) else f"{v:.2g}" for k, v in row.items()} for row in exact]),
        "forecasts": markdown(shown(later)),
    })  # fmt: skip
