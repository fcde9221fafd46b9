"""Encoders: a window of observations → [m, ℓ] of the state at each of its nodes.

    h_i = ENC(observations around t_i) ∈ R^{2d},      ℓ = log-variance;  more, if the posterior's covariance is full

An encoder says which rows of a window it needs beyond the partition (`lookahead`, `margin`). In training it hides some of
what follows, as the end of a series does, so that forecasts, which start there, are in distribution.
"""

import abc
import math
from collections.abc import Callable
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..data.windows import Window
from ..runtime.host import array, on_host
from .base import AbstractPart, LinearReading
from .convolutions import ConvNet
from .networks import MLP, Linear
from .posterior import Nodes, encode

ENCODERS = ("local", "window", "gru", "transformer")


class AbstractEncoder(AbstractPart):
    """A window → its encoded nodes.

    - `lookahead`, `margin`: K rows after the last node, and B nodes beyond either end of the partition, that windows must have.
    - `bridged`: whether the posterior's variance opens between the nodes (`posterior.Bridge`).
    - `whole_rows`: whether rows that lack single channels are taken for whole ones.
    - `start`: whether it is started from the linear `"reading"` of the data, by `"imitation"` of states that a reading gives, or
      `"as built"`.
    """

    lookahead: eqx.AbstractVar[int]
    margin: eqx.AbstractVar[int]
    whole_rows: eqx.AbstractVar[bool]
    bridged: ClassVar[bool] = False
    start: ClassVar[Literal["reading", "imitation", "as built"]] = "as built"

    @abc.abstractmethod
    def __call__(self, window: Window, *, key: PRNGKeyArray | None = None) -> Nodes:
        """The nodes of one window. With a key, in training, some of what comes after is hidden."""


def hide_future(
    window: Window, dropout: float, key: PRNGKeyArray | None
) -> tuple[Bool[Array, "rows channels"], Bool[Array, " rows"]]:
    """Mask and nodes of a window, in training, with probability `dropout`, without what follows its partition."""
    mask, node = jnp.asarray(window.mask), jnp.asarray(window.node)
    if key is None or dropout == 0 or window.margin == 0:
        return mask, node
    kept = (jnp.arange(len(node)) <= window.shared_node()) | (jax.random.uniform(key) > dropout)
    return mask & kept[:, None], node & kept


class Neighbours(eqx.Module):
    """Each node with the K observations after it, and the time steps between them; 0 where one is missing."""

    values: Float[Array, "nodes neighbours channels"]
    mask: Bool[Array, "nodes neighbours flags"]
    steps: Float[Array, "nodes lookahead"]


def neighbours(window: Window, mask: Bool[Array, "rows flags"], dropout: float, key: PRNGKeyArray | None) -> Neighbours:
    """The neighbours in a window, with one flag for each channel or one a row; with a key, in training, the look-ahead of a
    fraction `dropout` of the nodes is hidden from a random neighbour on."""
    ahead = window.lookahead
    count = len(window.times) - ahead

    def stack(rows: Array) -> Array:
        return jnp.stack([rows[k : k + count] for k in range(ahead + 1)], axis=1)

    times, values, seen = (stack(jnp.asarray(x)) for x in (window.times, window.values, mask))
    if key is not None and ahead > 0 and dropout > 0:
        hidden = np.linspace(0, dropout, ahead + 1) * 2.0**32  # out of 2³²; the node itself never
        seen = seen & (jax.random.bits(key, (count, 1), jnp.uint32) >= hidden.astype(np.uint32))[..., None]
    present = jnp.any(seen[:, 1:], axis=-1)
    return Neighbours(values, seen, jnp.where(present, jnp.diff(times, axis=1), 0))


class WindowEncoder(AbstractEncoder):
    """Each observation and its K successors → [m, ℓ] there, as in the paper.

    The network sees values × mask, the mask and the time steps between the observations; what is missing (a channel, or
    the successors at the end of a series) is masked, so every observation can be encoded. With `whole_rows` one flag a row is
    mask enough; a channel that is missing later counts as zero. With `residual` the observation itself is added to the mean, for
    learning in the data's own coordinates.
    """

    net: MLP
    log_variance: Float[Array, ""]
    latent_size: int = eqx.field(static=True)
    lookahead: int = eqx.field(static=True)
    residual: bool = eqx.field(static=True, default=False)
    typical_step: float = eqx.field(static=True, default=1.0)
    whole_rows: bool = eqx.field(static=True, default=False)
    dropout: float = eqx.field(static=True, default=0.0)
    margin: int = eqx.field(static=True, default=0)

    @staticmethod
    def in_size(num_channels: int, lookahead: int, *, whole_rows: bool) -> int:
        """How many numbers the network sees."""
        return (lookahead + 1) * (num_channels + (1 if whole_rows else num_channels)) + lookahead

    def __call__(self, window: Window, *, key: PRNGKeyArray | None = None) -> Nodes:
        mask = jnp.asarray(window.mask)
        mask = jnp.any(mask, axis=1, keepdims=True) if self.whole_rows else mask
        near = neighbours(window, mask, self.dropout, key)
        values, mask = near.values, near.mask
        # Neighbour by neighbour and row by row, as the data lies; the first layer's product takes it from there.
        seen = [jnp.where(mask[:, k], values[:, k], 0) for k in range(self.lookahead + 1)]
        flags = mask.astype(values.dtype).reshape(len(mask), -1)
        h = self.net(jnp.concatenate([*seen, flags, near.steps / self.typical_step], axis=1).T).T
        mean = seen[0] if self.residual else jnp.zeros((1, 1), h.dtype)
        return Nodes(
            encode(h, mean, self.log_variance[None, None], self.latent_size), jnp.asarray(window.node)[: len(mask)]
        )


class FrameEncoder(AbstractEncoder):
    """Each frame and its K successors → [m, ℓ] there, by convolutions. Later frames come in as differences from the first: what
    moves is small beside what stands still."""

    net: ConvNet
    log_variance: Float[Array, ""]
    latent_size: int = eqx.field(static=True)
    frame_shape: tuple[int, ...] = eqx.field(static=True)
    lookahead: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    margin: int = eqx.field(static=True, default=0)
    whole_rows: bool = eqx.field(static=True, default=False)
    start: ClassVar[Literal["reading", "imitation", "as built"]] = "imitation"

    def __call__(self, window: Window, *, key: PRNGKeyArray | None = None) -> Nodes:
        near = neighbours(window, jnp.asarray(window.mask), self.dropout, key)
        values, mask = jnp.where(near.mask, near.values, 0), near.mask
        h = self.net(self._planes(jnp.moveaxis(values, 0, -1), jnp.moveaxis(mask, 0, -1))).T
        coded = encode(h, jnp.zeros((1, 1), h.dtype), self.log_variance[None, None], self.latent_size)
        return Nodes(coded, jnp.asarray(window.node)[: len(mask)])

    def _planes(
        self, values: Float[Array, "neighbours channels nodes"], mask: Bool[Array, "neighbours channels nodes"]
    ) -> Float[Array, "planes height width nodes"]:
        """What the convolutions see."""
        moved = jnp.where(mask[1:] & mask[:1], values[1:] - values[:1], 0)
        both = jnp.concatenate([values[:1], moved, mask.astype(values.dtype)])
        height, width, *colours = self.frame_shape
        frames = both.reshape(-1, height, width, math.prod(colours), values.shape[-1])
        return jnp.moveaxis(frames, 3, 1).reshape(-1, height, width, values.shape[-1])


class OwnEncoder(AbstractEncoder):
    """A user's own module that sees one node: values and mask of it and its K successors, and the steps between them. One that
    wants to see the whole window is an `AbstractEncoder`."""

    module: Callable[[Array, Array, Array], Array]
    lookahead: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    margin: int = eqx.field(static=True, default=0)
    whole_rows: bool = eqx.field(static=True, default=False)

    def __call__(self, window: Window, *, key: PRNGKeyArray | None = None) -> Nodes:
        near = neighbours(window, jnp.asarray(window.mask), self.dropout, key)
        values = jax.vmap(self.module)(near.values, near.mask, near.steps)
        return Nodes(values, jnp.asarray(window.node)[: len(values)])


class AbstractSequence(eqx.Module):
    """A network over all rows of a window at once, to `out_size` features of each."""

    @property
    @abc.abstractmethod
    def out_size(self) -> int: ...

    @abc.abstractmethod
    def __call__(
        self, rows: Float[Array, "rows size"], times: Float[Array, " rows"], present: Bool[Array, " rows"]
    ) -> Float[Array, "rows hidden"]:
        """Features of each row; rows that are not `present` say nothing to the others."""


class GRU(AbstractSequence):
    """Two recurrent networks, one from the first row to the last and one back: what came before, and what comes after."""

    cells: tuple[eqx.nn.GRUCell, eqx.nn.GRUCell]

    def __init__(self, in_size: int, hidden_size: int, *, rng: np.random.Generator):
        def cell(key: PRNGKeyArray) -> eqx.nn.GRUCell:
            return eqx.nn.GRUCell(in_size, hidden_size, key=key)

        self.cells = (on_host(cell, hidden_size, rng), on_host(cell, hidden_size, rng))

    @property
    def out_size(self) -> int:
        return 2 * self.cells[0].hidden_size

    def __call__(
        self, rows: Float[Array, "rows size"], times: Float[Array, " rows"], present: Bool[Array, " rows"]
    ) -> Float[Array, "rows hidden"]:
        def read(cell: eqx.nn.GRUCell, reverse: bool) -> Array:
            def step(hidden: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
                hidden = jnp.where(row[1], cell(row[0], hidden), hidden)
                return hidden, hidden

            return jax.lax.scan(step, jnp.zeros(cell.hidden_size, rows.dtype), (rows, present), reverse=reverse)[1]

        return jnp.concatenate([read(self.cells[0], False), read(self.cells[1], True)], axis=1)


class Transformer(AbstractSequence):
    """Layers of self-attention over the rows, each followed by an MLP; times enter as waves of one to 2⁸ typical steps."""

    embed: Linear
    attention: tuple[eqx.nn.MultiheadAttention, ...]
    mlps: tuple[MLP, ...]
    norm: eqx.nn.LayerNorm
    typical_step: float = eqx.field(static=True)

    def __init__(self, in_size: int, sizes: tuple[int, ...], *, typical_step: float, rng: np.random.Generator):
        size = 8 * max(sizes[-1] // 8, 1)

        def attention(key: PRNGKeyArray) -> eqx.nn.MultiheadAttention:
            return eqx.nn.MultiheadAttention(4, size, key=key)

        self.embed = Linear(in_size + 16, size, rng=rng)
        self.attention = tuple(on_host(attention, size, rng) for _ in sizes)
        self.mlps = tuple(MLP((size, 2 * size, size), rng=rng) for _ in sizes)
        self.norm = eqx.nn.LayerNorm(size, use_weight=False, use_bias=False)
        self.typical_step = typical_step

    @property
    def out_size(self) -> int:
        return len(self.embed.bias)

    def __call__(
        self, rows: Float[Array, "rows size"], times: Float[Array, " rows"], present: Bool[Array, " rows"]
    ) -> Float[Array, "rows hidden"]:
        phase = times[:, None] / (self.typical_step * 2.0 ** np.arange(8))
        x = self.embed(jnp.concatenate([rows, jnp.sin(phase), jnp.cos(phase)], axis=1).T).T
        seen = jnp.broadcast_to(present, (len(present), len(present)))
        for attention, mlp in zip(self.attention, self.mlps, strict=True):
            y = jax.vmap(self.norm)(x)
            x = x + attention(y, y, y, mask=seen)
            x = x + mlp(jax.vmap(self.norm)(x).T).T
        return x


class SequenceEncoder(AbstractEncoder):
    """A network over the whole window, margins included, → [m, ℓ] at every row.

    It sees values × mask, the mask and the steps to the rows before and after. The mean is a linear map of the row itself, which
    starts at the levels of the linear reading, plus what the network adds, at first nothing. In data coordinates the map is the
    identity.
    """

    network: AbstractSequence
    last: Linear
    level: Float[Array, "latent channels"]
    shift: Float[Array, " channels"]
    scale: Float[Array, " channels"]
    log_variance: Float[Array, ""]
    typical_step: float = eqx.field(static=True)
    margin: int = eqx.field(static=True)
    dropout: float = eqx.field(static=True)
    lookahead: int = eqx.field(static=True, default=0)
    whole_rows: bool = eqx.field(static=True, default=False)
    bridged: ClassVar[bool] = True
    start: ClassVar[Literal["reading", "imitation", "as built"]] = "reading"

    def __call__(self, window: Window, *, key: PRNGKeyArray | None = None) -> Nodes:
        mask, node = hide_future(window, self.dropout, key)
        times, values = jnp.asarray(window.times), jnp.asarray(window.values)
        shift, scale = jax.lax.stop_gradient((self.shift, self.scale))
        x = jnp.where(mask, (values - shift) / scale, 0)
        present = jnp.any(mask, axis=1)
        steps = jnp.diff(times) / self.typical_step
        around = [jnp.pad(steps, (1, 0))[:, None], jnp.pad(steps, (0, 1))[:, None]]
        h = self.last(self.network(jnp.concatenate([x, mask.astype(x.dtype), *around], axis=1), times, present).T).T
        return Nodes(encode(h, x @ self.level.T, self.log_variance[None, None], len(self.level)), node)

    def started_from(self, reading: LinearReading) -> "SequenceEncoder":
        count = reading.components.shape[1]
        level = reading.axes[:, :count] @ reading.components.T
        start = (array(level), array(reading.shift), array(reading.scale))
        return eqx.tree_at(lambda e: (e.level, e.shift, e.scale), self, start)
