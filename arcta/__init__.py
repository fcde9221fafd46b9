"""arcta: latent stochastic differential equations from noisy time series, learned without a solver."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import datasets as datasets
from .backtest import Backtest as Backtest
from .backtest import backtest as backtest
from .elbo import ELBO as ELBO
from .elbo import elbo as elbo
from .fit import fit as fit
from .fit import sweep as sweep
from .fitted import Fit as Fit
from .fitted import load as load
from .metrics import Scores as Scores
from .model import LatentSDE as LatentSDE
from .model import Model as Model
from .prediction import Bands as Bands
from .prediction import Prediction as Prediction
from .prior import Known as Known
from .prior import Learned as Learned
from .prior import LogNormal as LogNormal
from .prior import Normal as Normal
from .read import read as read
from .report import report as report
from .series import Calendar as Calendar
from .series import Series as Series
from .series import split as split
from .store import Store as Store
from .store import store as store
from .train import Training as Training
from .train import TrainingDiverged as TrainingDiverged
from .windows import Window as Window

if TYPE_CHECKING:
    from . import baselines as baselines

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`arcta.baselines` brings in diffrax, half a second of imports that training does without."""
    if name != "baselines":
        raise AttributeError(f"module 'arcta' has no attribute '{name}'")
    return import_module(".baselines", __name__)
