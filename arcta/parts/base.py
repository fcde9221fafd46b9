"""What every part can do, and the linear reading of the data that parts start from.

a, c          level and slope of every channel around every observation: local lines
z = E [a, c]  principal axes of the levels, then of the slopes, each of unit variance
x ≈ C z + b   least squares
ż ≈ A (z − z̄)  from the regression of z(t + Δ) on z(t); q is the variance of what is left, per unit of time
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float


class LinearReading(NamedTuple):
    """A linear state-space reading of the training data, in the model's units; made by `model.start`."""

    shift: Float[np.ndarray, " channels"]
    scale: Float[np.ndarray, " channels"]
    components: Float[np.ndarray, "channels components"]
    axes: Float[np.ndarray, "latent levels_and_slopes"]
    dynamics: Float[np.ndarray, "latent latent"]
    centre: Float[np.ndarray, " latent"]
    diffusion: Float[np.ndarray, " latent"] | None
    bridge: Float[np.ndarray, " latent"]
    read_out: Float[np.ndarray, "channels latent"]
    intercept: Float[np.ndarray, " channels"]


class AbstractPart(eqx.Module):
    """A part of a model. `own`: whether it computes with code of the user's; `owner`: whose it is, in a sentence."""

    own: ClassVar[bool] = False
    owner: ClassVar[str] = "a part of the model"

    def as_seen(self, z: Float[np.ndarray, " latent"]) -> Float[np.ndarray, " latent"]:
        """A state as the user's code sees it."""
        return z

    def started_from(self, reading: LinearReading) -> AbstractPart:
        """This part with its weights where the reading puts them; as it is, unless it has a use for the reading.

        `shift` and `scale` standardise values as the encoder sees them, `components` project them; `diffusion` is None if the
        user has said where it starts.
        """
        return self
