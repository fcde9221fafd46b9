"""arcta: latent stochastic differential equations from noisy time series, learned without a solver."""

# ruff: noqa: E402
from .outside.cli.signals import while_starting

while_starting()  # the imports below take a second or more

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING

from .bound.elbo import ELBO as ELBO
from .data import datasets as datasets
from .data.calendar import Calendar as Calendar
from .data.read import read as read
from .data.series import Series as Series
from .data.split import split as split
from .data.store import Store as Store
from .data.store import store as store
from .data.windows import Window as Window
from .model.spec import LatentSDE as LatentSDE
from .outside.report import report as report
from .parts.model import Model as Model
from .parts.prior import Known as Known
from .parts.prior import Learned as Learned
from .parts.prior import LogNormal as LogNormal
from .parts.prior import Normal as Normal
from .parts.prior import TruncatedNormal as TruncatedNormal
from .predict.metrics import Scores as Scores
from .predict.prediction import Bands as Bands
from .predict.prediction import Prediction as Prediction
from .predict.trust import Trust as Trust
from .task.backtest import Backtest as Backtest
from .task.backtest import backtest as backtest
from .task.fit import fit as fit
from .task.fit import sweep as sweep
from .task.fitted import Fit as Fit
from .task.fitted import load as load
from .task.summary import Summary as Summary
from .task.window import elbo as elbo
from .task.window import window as window
from .training.loop import TrainingDiverged as TrainingDiverged
from .training.settings import Training as Training

if TYPE_CHECKING:
    from types import ModuleType

    from .rivals import baselines as baselines

__version__ = "0.1.0"


def __getattr__(name: str) -> "ModuleType":
    """`arcta.baselines` brings in diffrax, half a second of imports that training does without."""
    if name != "baselines":
        raise AttributeError(f"module 'arcta' has no attribute '{name}'")
    return import_module(".rivals.baselines", __name__)
