"""The residual at ONE point: what the posterior's drift has that the prior's has not.

    r = g − f,     g = ṁ + B (m − z) + G (z − m),     z = m + √s ε

Draws and times are mapped over it by `elbo`; letters as in docs/notation.md.
"""

from __future__ import annotations

from jaxtyping import Array, Float

from ..parts.generative import Draw
from ..parts.model import Model
from ..parts.posterior import AbstractMarginal
from ..parts.sde import value_and_jacobian


def residual(
    model: Model,
    q_t: AbstractMarginal,
    t: Float[Array, ""],
    u: Float[Array, " inputs"],
    ε: Float[Array, " latent"],
    θ: Draw,
) -> tuple[Float[Array, " latent"], Float[Array, " latent"]]:
    """r at z = m + δ for one draw ε, θ; and q, the diffusion there. `q_t` is the posterior at t."""
    m, δ = q_t.normal.mean, q_t.normal.deviation(ε)
    z = m + δ
    q = model.diffusion(t, θ.diffusion)
    if model.rotation and len(z) > 1:
        f, J = value_and_jacobian(model.drift, t, z, m, u, θ.drift)
    else:
        f, J = model.drift(t, z, u, θ.drift), None
    g = q_t.drift(δ, q, J)
    return g - f, q
