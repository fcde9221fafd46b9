"""Gradients of a chaotic system: the adjoint's explode with the horizon, ARCTA's do not; and the parameters they lead to.

Data: the Lorenz system (σ, β, ρ) = (10, 8/3, 28) from (8, −2, 36.05) at 200 Hz for 1, 10, 50 and 100 s with noise of variance 1;
five data sets each, every one with a first guess of the parameters drawn at 20 % around the truth (drawn again until the
guess is chaotic too). The adjoint's gradient is that of the mean squared error at the guess, in float64 with tolerance 1e-5;
ARCTA's is that of −ELBO per observed entry, its norm averaged over 2,000 iterations (every tenth is measured). Both are with
respect to σ, β, ρ themselves. Then the same data with the posterior by the model's own flow (`posterior="smoother"`, windows of
512), beside the least error that any unbiased estimate can have, by the sensitivities of the noiseless path.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import arcta
from arcta.data.batches import TrainingData
from arcta.model.build import build
from arcta.outside.study import Study, markdown
from arcta.parts.model import Model
from arcta.parts.posterior import rotation
from arcta.predict.figures import ACCENT, SECOND, new_figure
from arcta.rivals.solved import solve_ode
from arcta.task.run import describe
from arcta.training.loop import Hooks, train
from arcta.training.prepare import Recipe, prepare

TRUTH = {"sigma": 10.0, "beta": 8 / 3, "rho": 28.0}
START = (8.0, -2.0, 36.05)
HORIZONS = (1.0, 10.0, 50.0, 100.0)
# M and R as in the paper. A step draws 4 windows and 25 times in each where the paper draws 1 and 100: as many drift values.
TRAINING = arcta.Training(
    steps=2000, batch_size=4, num_draws=10, num_times=25, learning_rate=0.02, kl_ramp=0.05, log_every=10
)


def field(t: Any, z: Any, p: Any, u: Any = None) -> list[Any]:
    """σ (y − x), x (ρ − z) − y, x y − β z."""
    return [p["sigma"] * (z[1] - z[0]), z[0] * (p["rho"] - z[2]) - z[1], z[0] * z[1] - p["beta"] * z[2]]


def lyapunov(guess: dict[str, float], duration: float = 100.0, step: float = 0.01) -> float:
    """The largest Lyapunov exponent along the path from `START`: growth of a small difference, rescaled at every step."""

    def rate(z: np.ndarray) -> np.ndarray:
        return np.array(field(0.0, z, guess))

    def advance(z: np.ndarray) -> np.ndarray:
        k1 = rate(z)
        k2 = rate(z + 0.5 * step * k1)
        k3 = rate(z + 0.5 * step * k2)
        return z + step / 6 * (k1 + 2 * k2 + 2 * k3 + rate(z + step * k3))

    z, growth, size = np.array(START), 0.0, 1e-7
    other = z + np.array([size, 0, 0])
    for _ in range(round(duration / step)):
        z, other = advance(z), advance(other)
        distance = float(np.linalg.norm(other - z))
        growth += np.log(distance / size)
        other = z + (other - z) * size / distance
    return growth / duration


def first_guess(seed: int) -> tuple[dict[str, float], int]:
    """Parameters at 20 % around the truth whose path is chaotic, and how many draws were not."""
    rng = np.random.default_rng([2023, seed])
    for draws in range(100):
        guess = {name: float(value * (1 + 0.2 * rng.standard_normal())) for name, value in TRUTH.items()}
        if lyapunov(guess) > 0.3:
            return guess, draws
    raise RuntimeError("no chaotic guess in 100 draws")


def adjoint_norm(series: arcta.Series, guess: dict[str, float]) -> float:
    """The norm of the adjoint's gradient of the mean squared error, in float64."""
    with jax.enable_x64(True):
        times, values = jnp.asarray(series.times, jnp.float64), jnp.asarray(series.values, jnp.float64)

        def error(parameters: dict[str, Any]) -> Any:
            def rate(t: Any, z: Any, args: Any) -> Any:
                return jnp.stack(field(t, z, args))

            begin = jnp.asarray(START, jnp.float64)
            return jnp.mean(
                (solve_ode(rate, begin, times, parameters, tolerance=1e-5, max_steps=10**7).states - values) ** 2
            )

        slope = jax.jit(jax.grad(error))({name: jnp.asarray(value, jnp.float64) for name, value in guess.items()})
        return float(np.linalg.norm([float(x) for x in slope.values()]))


def specification(guess: dict[str, float], encoder: str = "window") -> arcta.LatentSDE:
    """The paper's set-up: identity decoder, known noise, M = 128; broad priors around the guess."""
    parameters = {name: arcta.LogNormal(value, 1.0, start=value, start_spread=0.05) for name, value in guess.items()}
    return arcta.LatentSDE(
        decoder="identity",
        encoder=encoder,
        lookahead=0,
        noise=1.0,
        drift=field,
        parameters=parameters,
        partition_size=128,
        activation="relu",
        kernel_sizes=(32,),
        lengthscale=4.5,
        interpolation_noise=1e-5,
        diffusion_start=1e-3,
        posterior="amortised",
    )


FLOW = arcta.Training(batch_size=4)


def flow_specification(guess: dict[str, float]) -> arcta.LatentSDE:
    """The same model with the posterior by its own flow; the longer a path without noise is followed, the more it says."""
    return dataclasses.replace(specification(guess), posterior="smoother", partition_size=512)


def least_error(horizon: float) -> dict[str, float]:
    """The Cramér–Rao bound on the relative error of σ, β, ρ, the start unknown, without diffusion."""
    names = list(TRUTH)
    with jax.enable_x64(True):

        def rate(t: Any, state: Any, args: Any) -> Any:
            z, D = state[:3], state[3:].reshape(3, 6)

            def f(z: Any, logs: Any) -> Any:
                return jnp.stack(
                    field(t, z, {name: TRUTH[name] * jnp.exp(x) for name, x in zip(names, logs, strict=True)})
                )

            J, F = jax.jacfwd(f, argnums=(0, 1))(z, jnp.zeros(3))
            return jnp.concatenate([f(z, jnp.zeros(3)), (J @ D + jnp.hstack([jnp.zeros((3, 3)), F])).ravel()])

        begin = jnp.concatenate([jnp.asarray(START), jnp.hstack([jnp.eye(3), jnp.zeros((3, 3))]).ravel()])
        times = jnp.arange(round(200 * horizon) + 1) / 200
        states = solve_ode(rate, begin, times, None, tolerance=1e-9, max_steps=10**7).states
        D = np.asarray(states)[:, 3:].reshape(-1, 6)
    scale = np.abs(D).max(axis=0)  # directions that grow by e^90 and ones that hardly do
    covariance = np.linalg.pinv((D / scale).T @ (D / scale), rcond=1e-15) / np.outer(scale, scale)
    return dict(zip(names, np.sqrt(np.diagonal(covariance)[3:]).tolist(), strict=True))


def follow(study: Study, horizon: float, seed: int, posterior: str) -> dict[str, Any]:
    """One data set with the smoother."""
    guess, _ = first_guess(seed)
    series = arcta.datasets.lorenz(seed=seed, duration=horizon)
    training = arcta.Training(batch_size=4, steps=60) if study.quick else FLOW
    fit = arcta.fit(flow_specification(guess), series, training=training, key=seed, progress=False)
    scaling = fit.layout.scaling
    q = np.asarray(fit.model.diffusion.median()) * scaling.scale**2 / scaling.time_scale
    jumps = [row["join_kl_mean"] for row in fit.history if "join_kl_mean" in row]
    found = {"seconds": fit.seconds, "diffusion": q.tolist(), "join": jumps[-1] if jumps else None}
    return {**found, **recovered(fit.model, guess)}


def recovered(model: Model, guess: dict[str, float]) -> dict[str, Any]:
    """The parameters' medians and 95 % intervals, and whether those hold the truth."""
    result: dict[str, Any] = {}
    for name, truth in TRUTH.items():
        item = model.drift.named_parameters()[name]
        low, middle, high = (float(item.quantile(p)) for p in (0.025, 0.5, 0.975))
        inside = bool(low <= truth <= high)
        result[name] = {"guess": guess[name], "median": middle, "q2.5": low, "q97.5": high, "inside": inside}
        result[f"{name}_error"] = middle / truth - 1
    return result


def flow_table(rows: list[dict[str, Any]], horizons: tuple[float, ...]) -> list[dict[str, Any]]:
    """By length: errors beside the least possible ones, intervals, diffusion."""
    table = []
    for horizon in horizons:
        part = [row for row in rows if row["horizon"] == horizon]
        errors = np.array([[abs(row[f"{name}_error"]) for name in TRUTH] for row in part])
        widths = np.array([[np.log(row[n]["q97.5"] / row[n]["q2.5"]) / 3.92 for n in TRUTH] for row in part])
        least = (
            least_error(horizon) if horizon <= 10 else None
        )  # beyond, directions differ by more than numbers resolve
        percent = lambda values: ", ".join(f"{100 * e:.2f}" for e in values)  # noqa: E731
        table.append(
            {
                "length": f"{horizon:g} s",
                "largest error of σ, β, ρ in %": percent(errors.max(axis=0)),
                "standard deviation in %": percent(widths.mean(axis=0)),
                "least possible in %": percent(least.values()) if least else "",
                "inside 95 % interval": f"{sum(row[n]['inside'] for row in part for n in TRUTH)} of {3 * len(part)}",
                "q per axis, mean (largest)": ", ".join(
                    f"{np.mean(q):.3f} ({np.max(q):.3f})" for q in np.array([row["diffusion"] for row in part]).T
                ),
                "optimisation": f"{np.median([row['seconds'] for row in part]):.1f} s",
            }
        )
    return table


def residual_parts(model: Model, data: TrainingData, span: float) -> dict[str, float]:
    """½ ∫ E‖part‖²/q dt in nats for each part of r: what the learned diffusion has to pay for."""
    q, values = model.diffusion.level.quantile(0.5), model.drift.median()

    def parts(posterior: Any, t: Any, noise: Any) -> Any:
        marginal = posterior(t)
        std = jnp.exp(0.5 * marginal.normal.log_variance)

        def f(z: Any) -> Any:
            return model.drift(t, z, jnp.zeros(0), values)

        jacobian = jax.jacfwd(f)(marginal.normal.mean)
        turned = rotation(jacobian, std**2, q)
        mean = marginal.mean_rate - f(marginal.normal.mean)
        spread = 0.5 * marginal.log_variance_rate * std * noise + (turned - jacobian) @ (std * noise)
        price = -0.5 * q * noise / std
        curved = f(marginal.normal.mean) + jacobian @ (std * noise) - f(marginal.normal.mean + std * noise)
        return jnp.stack([jnp.sum(x**2 / q) for x in (mean, spread, price, curved, mean + spread + price + curved)])

    @eqx.filter_jit
    def average(model: Model, windows: Any) -> Any:
        def one(item: Any) -> Any:
            window, key = item
            posterior = model.posterior(window)
            when, what = jax.random.split(key)
            times = window.end * jax.random.uniform(when, (400,))
            return jnp.mean(
                jax.vmap(lambda t, e: parts(posterior, t, e))(times, jax.random.normal(what, (400, 3))), axis=0
            )

        return jnp.mean(jax.lax.map(one, (windows, jax.random.split(jax.random.key(0), len(windows.first)))), axis=0)

    names = ("mean: m' - f(m)", "spread: l', J", "price of q: -q e/2s", "curvature of f", "all")
    return dict(zip(names, (0.5 * span * np.asarray(average(model, data.windows))).tolist(), strict=True))


def measure(study: Study, horizon: float, seed: int, encoder: str) -> dict[str, Any]:
    """One data set: the adjoint's gradient at the guess; ARCTA's over training, and where it ends."""
    guess, rejected = first_guess(seed)
    series = arcta.datasets.lorenz(seed=seed, duration=horizon)
    spec = specification(guess, encoder)
    steps = 60 if study.quick else TRAINING.steps
    training = arcta.Training(**{**vars(TRAINING), "steps": steps, "validate_every": 10**6, "checkpoint_every": 10**6})
    build_key, train_key = jax.random.split(jax.random.key(seed))
    recipe = Recipe(make=lambda spec, layout, reading, _: build(spec, layout, reading, key=build_key), warm=False)
    ready = prepare(spec, series, training, key=train_key, recipe=recipe)
    objective, data, scaling = ready.objective, ready.data, ready.layout.scaling
    norms: list[float] = []

    @eqx.filter_jit
    def slope(model: Model, data: TrainingData, step: Any) -> Any:
        def loss(model: Model) -> Any:
            return objective(model, data, step, key=jax.random.fold_in(train_key, step))[0]

        gradient = eqx.filter_grad(loss)(model).drift.named_parameters()
        # d/d(log θ) = θ d/dθ
        return jnp.stack(
            [gradient[name].log.mean / model.drift.named_parameters()[name].quantile(0.5) for name in TRUTH]
        )

    def watch(model: Model, step: int) -> dict[str, float]:
        norms.append(float(jnp.linalg.norm(slope(model, data, jnp.asarray(step)))))
        return {}

    outcome = train(objective, ready.state, data, training, hooks=Hooks(measure=watch), progress=False)
    model = outcome.state.model
    unit = scaling.scale**2 / scaling.time_scale
    result: dict[str, Any] = {
        "adjoint_norm": adjoint_norm(series, guess) if encoder == "window" else None,
        "arcta_norm": float(np.mean(norms)),
        "seconds": outcome.seconds,
        "rejected_guesses": rejected,
        "diffusion": (np.asarray(model.diffusion.level.quantile(0.5)) * unit).tolist(),
        "parts": residual_parts(model, data, (series.times[-1] - series.times[0]) / scaling.time_scale),
    }
    return {**result, **recovered(model, guess)}


def figure(rows: list[dict[str, Any]], flow: list[dict[str, Any]]) -> Any:
    """Gradient norms against the horizon, and the parameters' errors with intervals, by the model's own flow."""
    drawn, axes = new_figure(1, 2, width=11.0, height=4.2)
    left, right = axes[0]
    for name, color, mark in (("adjoint_norm", SECOND, "s"), ("arcta_norm", ACCENT, "o")):
        x = [row["horizon"] for row in rows]
        y = [row[name] if row[name] is not None else np.nan for row in rows]
        left.plot(
            x,
            y,
            mark,
            color=color,
            alpha=0.6,
            label="adjoint at the guess" if mark == "s" else "ARCTA, mean over training",
        )
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("length of the series [s]", fontsize=9)
    left.set_ylabel("norm of the gradient", fontsize=9)
    left.legend(frameon=False, fontsize=8)
    for offset, (name, color) in enumerate(zip(TRUTH, (ACCENT, SECOND, "#5b8c5a"), strict=True)):
        for row in flow:
            x = HORIZONS.index(row["horizon"]) + 0.25 * (offset - 1) + 0.03 * (row["seed"] - 2)
            item, truth = row[name], TRUTH[name]
            ends = [100 * (item[end] / truth - 1) for end in ("q2.5", "q97.5")]
            right.plot([x, x], ends, color=color, linewidth=1)
            right.plot(
                x, 100 * row[f"{name}_error"], "o", color=color, markersize=3, label=name if row is flow[0] else None
            )
    right.axhspan(-0.5, 0.5, color="#e4e8ec", zorder=0)
    right.set_ylim(-5, 5)
    right.set_xticks(range(len(HORIZONS)), [f"{h:g} s" for h in HORIZONS])
    right.set_ylabel("error in % with 95 % interval; grey: ±0.5 %", fontsize=9)
    right.legend(frameon=False, fontsize=8)
    return drawn


def gradient_table(rows: list[dict[str, Any]], horizons: tuple[float, ...]) -> list[dict[str, Any]]:
    """By length: norms of both gradients, and where the paper's posterior leads."""
    table = []
    for horizon in horizons:
        part = [row for row in rows if row["horizon"] == horizon]
        errors = [[abs(row[f"{name}_error"]) for name in TRUTH] for row in part]
        inside = sum(row[name]["inside"] for row in part for name in TRUTH)
        table.append(
            {
                "length": f"{horizon:g} s",
                "adjoint, median (least … most)": "{:.1e} ({:.1e} … {:.1e})".format(
                    *(float(f([row["adjoint_norm"] for row in part])) for f in (np.median, np.min, np.max))
                ),
                "adjoint above 1e6": f"{sum(row['adjoint_norm'] > 1e6 for row in part)} of {len(part)}",
                "ARCTA, mean over training": f"{np.mean([row['arcta_norm'] for row in part]):.2g}",
                "largest error of σ, β, ρ": ", ".join(f"{100 * e:.2f} %" for e in np.max(errors, axis=0)),
                "inside 95 % interval": f"{inside} of {3 * len(part)}",
                "learned q per axis": ", ".join(
                    f"{q:.1f}" for q in np.mean([row["diffusion"] for row in part], axis=0)
                ),
                "optimisation": f"{np.median([row['seconds'] for row in part]):.1f} s",
            }
        )
    return table


def run(study: Study) -> None:
    horizons = (1.0,) if study.quick else HORIZONS
    jobs = [
        {"horizon": horizon, "seed": seed, "encoder": "window"}
        for horizon in horizons
        for seed in range(study.num_seeds(5))
    ]
    settings = {"training": repr(TRAINING), "model": describe(specification(dict(TRUTH))), "quick": study.quick}
    measured = functools.partial(measure, study)
    rows = study.measure(jobs, measured, settings)
    # Where the diffusion comes from, also with an encoder that sees both sides and smooths more.
    other = [] if study.quick else [{"horizon": 10.0, "seed": seed, "encoder": "local"} for seed in range(2)]
    more = study.measure(other, measured, settings)
    flow_settings = {"training": repr(FLOW), "model": describe(flow_specification(dict(TRUTH))), "quick": study.quick}
    flow_jobs = [{"horizon": job["horizon"], "seed": job["seed"], "posterior": "smoother"} for job in jobs]
    flow = study.measure(flow_jobs, functools.partial(follow, study), flow_settings)
    table = gradient_table(rows, horizons)
    chosen = [row for row in [*rows, *more] if row["horizon"] == (horizons[0] if study.quick else 10.0)]
    parts = [
        {"encoder": encoder}
        | {
            name: f"{np.mean([row['parts'][name] for row in chosen if row['encoder'] == encoder]):.0f}"
            for name in chosen[0]["parts"]
        }
        for encoder in dict.fromkeys(row["encoder"] for row in chosen)
    ]
    norms = [np.mean([row["arcta_norm"] for row in rows if row["horizon"] == h]) for h in horizons]
    study.save_figure("gradients", figure(rows, flow))
    followed = flow_table(flow, horizons)
    long = [row for row in rows if row["horizon"] >= 10]
    summary = {
        "table": table,
        "residual_parts_nats": parts,
        "arcta_norm_ratio_over_horizons": max(norms) / min(norms),
        "largest_error_from_10_s_on": max([abs(row[f"{n}_error"]) for row in long for n in TRUTH], default=None),
        "inside_95_from_10_s_on": f"{sum(row[n]['inside'] for row in long for n in TRUTH)} of {3 * len(long)}",
        "flow": followed,
        "flow_inside_95": f"{sum(row[n]['inside'] for row in flow for n in TRUTH)} of {3 * len(flow)}",
    }
    study.finish(summary, {"gradients": markdown(table), "flow": markdown(followed), "residual": markdown(parts)})
