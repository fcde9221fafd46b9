"""`Training`: how to train, checked before anything is compiled, and the optimiser it means."""

from __future__ import annotations

import dataclasses
from typing import Literal

import optax
from jaxtyping import ArrayLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How to train. The loss sees `batch_size` windows a step, `num_draws` × `num_times` drift values in each, and decodes
    `num_decoded` of the draws (default: all) at every observation. (A posterior by the model's own flow takes a pair of drift
    values in each step between nodes instead, and draws only for what is not Gaussian.)

    **Arguments:**

    - `steps` (1 or more; steps): how many are taken.
    - `batch_size` (1 or more; windows): in each step.
    - `num_draws` (1 or more; draws): R, of the parameters and the path in each window.
    - `num_times` (1 or more; times): S, at which the drift is taken in each window.
    - `learning_rate` (positive; per step): of Adam, which trains what has no closed form (with `posterior="amortised"`
      everything, which takes about twice as many steps).
    - `schedule`: of the learning rate: `"cosine"` (to zero at the last step) or `"exponential"` (× 0.9 every 1000 steps, as the
      paper has it).
    - `warmup` (0 or more, below 1; a fraction of the steps): over which the rate first rises from 0.
    - `clip` (positive; the loss's per observed entry): the largest norm of a gradient.
    - `kl_weight` (0 or more; –): of the bound's KL terms; 1 is the true bound.
    - `kl_ramp` (from 0 to 1; a fraction of the steps): over which that weight rises from 0.
    - `join_penalty` (0 or more; –): weight of the posterior's jump between windows.
    - `log_every` (1 or more; steps): how often the loss is logged.
    - `validate_every` (1 or more; steps): how often what is held out is forecast.
    - `checkpoint_every` (1 or more; steps): how often a run that has a folder can be resumed from.
    - `patience` (1 or more; validations): stop after so many without a new best; by default never.
    - `select`: the model that is kept: the `"last"`, or the `"best"` in validation.
    - `num_decoded` (from 1 to `num_draws`; draws): that are decoded at every observation; by default all.
    """

    steps: int = 1000
    batch_size: int = 1
    num_draws: int = 4
    num_times: int = 16
    learning_rate: float = 5e-3
    schedule: Literal["cosine", "exponential"] = "cosine"
    warmup: float = 0.0
    clip: float = 10.0
    kl_weight: float = 1.0
    kl_ramp: float = 0.05
    join_penalty: float = 0.0
    log_every: int = 50
    validate_every: int = 250
    checkpoint_every: int = 500
    patience: int | None = None
    select: Literal["last", "best"] = "last"
    num_decoded: int | None = None

    def __post_init__(self) -> None:
        whole = ("steps", "batch_size", "num_draws", "num_times", "log_every", "validate_every", "checkpoint_every")
        for name, ok, wanted in (
            *((name, getattr(self, name) >= 1, "at least 1") for name in whole),
            ("learning_rate", self.learning_rate > 0, "positive"),
            ("clip", self.clip > 0, "positive"),
            ("kl_weight", self.kl_weight >= 0, "0 or more"),
            ("kl_ramp", 0 <= self.kl_ramp <= 1, "a fraction of the steps between 0 and 1"),
            ("warmup", 0 <= self.warmup < 1, "a fraction of the steps below 1"),
            ("join_penalty", self.join_penalty >= 0, "0 or more"),
            ("num_decoded", self.num_decoded is None or 1 <= self.num_decoded <= self.num_draws, "from 1 to num_draws"),
            ("patience", self.patience is None or self.patience >= 1, "at least 1"),
            ("schedule", self.schedule in ("cosine", "exponential"), "'cosine' or 'exponential'"),
            ("select", self.select in ("last", "best"), "'last' or 'best'"),
        ):
            if not ok:
                raise ValueError(f"{name} must be {wanted}; got {getattr(self, name)!r}. Leave it out for a default.")

    def optimiser(
        self, learning_rate: ArrayLike | None = None, clip: ArrayLike | None = None
    ) -> optax.GradientTransformation:
        """Clipping and Adam; with other numbers than these if given, traced ones too."""
        learning_rate = self.learning_rate if learning_rate is None else learning_rate
        if self.schedule == "cosine":
            rate = optax.cosine_decay_schedule(learning_rate, self.steps)
        else:
            rate = optax.exponential_decay(learning_rate, 1000, 0.9)
        rising = optax.linear_schedule(0.0, 1.0, round(self.warmup * self.steps)) if self.warmup > 0 else None
        warmed = rate if rising is None else (lambda step: rising(step) * rate(step))
        return optax.chain(optax.clip_by_global_norm(self.clip if clip is None else clip), optax.adam(warmed))
