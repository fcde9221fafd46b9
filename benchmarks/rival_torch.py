# pyright: reportMissingImports=false
"""The same training step in eager PyTorch: the rival of `step.py`, written as one would write it well.

Everything is batched tensor algebra; one Cholesky per window; derivatives of kernel and drift by tangents carried through the
layers (`torch.func` is slower, and `torch.compile` fails on it); Adam with `foreach`. The rotation term is there when asked for;
overheads of the authors' code (a trainer, finite differences) are not copied.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn

ACTIVATIONS = {"silu": nn.SiLU, "relu": nn.ReLU, "tanh": nn.Tanh}


def mlp(sizes: Sequence[int], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def tangents(net: nn.Sequential, x: torch.Tensor, dx: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """net(x), and its derivative along `dx`, whose last axis is that of `x`."""
    for layer in net:
        if isinstance(layer, nn.Linear):
            x, dx = layer(x), dx @ layer.weight.T
        else:
            y = layer(x)
            if isinstance(layer, nn.ReLU):
                slope = (x > 0).to(x.dtype)
            elif isinstance(layer, nn.Tanh):
                slope = 1 - y**2
            else:
                gate = torch.sigmoid(x)
                slope = gate * (1 + x * (1 - gate))
            x, dx = y, dx * (slope if dx.ndim == x.ndim else slope[..., None, :])
    return x, dx


class NetDrift(nn.Module):
    """A network with point-estimated weights."""

    def __init__(self, latent: int, sizes: Sequence[int], activation: str):
        super().__init__()
        self.net = mlp((latent, *sizes, latent), activation)

    def draw(self, *shape: int) -> torch.Tensor | None:
        return None

    def value(self, z: torch.Tensor, draw: torch.Tensor | None) -> torch.Tensor:
        return self.net(z)

    def jacobian(self, z: torch.Tensor, draw: torch.Tensor | None) -> torch.Tensor:
        return tangents(self.net, z, torch.eye(z.shape[-1]).expand(*z.shape, -1))[1].mT

    def kl(self) -> torch.Tensor:
        return torch.zeros(())


class UncertainDrift(nn.Module):
    """A z + b + W φ(z), A and W uncertain: arcta's `NeuralDrift`."""

    def __init__(self, latent: int, sizes: Sequence[int], activation: str):
        super().__init__()
        self.net = nn.Sequential(*mlp((latent, *sizes), activation), ACTIVATIONS[activation]())
        self.bias = nn.Parameter(torch.zeros(latent))
        self.mean = nn.Parameter(torch.zeros(latent, latent + sizes[-1]))
        self.log_std = nn.Parameter(torch.full((latent, latent + sizes[-1]), math.log(0.01)))
        self.log_prior_std = nn.Parameter(torch.tensor([math.log(0.5), math.log(0.1)]))

    def draw(self, *shape: int) -> torch.Tensor | None:
        return self.mean + self.log_std.exp() * torch.randn(*shape, 1, *self.mean.shape)

    def value(self, z: torch.Tensor, draw: torch.Tensor | None) -> torch.Tensor:
        assert draw is not None
        return (draw @ torch.cat([z, self.net(z)], dim=-1)[..., None])[..., 0] + self.bias

    def jacobian(self, z: torch.Tensor, draw: torch.Tensor | None) -> torch.Tensor:
        assert draw is not None
        directions = torch.eye(z.shape[-1]).expand(*z.shape, -1)
        inner = tangents(self.net, z, directions)[1]
        return draw @ torch.cat([directions, inner], dim=-1).mT

    def kl(self) -> torch.Tensor:
        sizes = torch.tensor([len(self.mean), self.mean.shape[1] - len(self.mean)])
        prior = self.log_prior_std.repeat_interleave(sizes)
        distance = 0.5 * ((2 * self.log_std).exp() + self.mean**2) * (-2 * prior).exp()
        return (prior - self.log_std - 0.5 + distance).sum()


class LorenzDrift(nn.Module):
    """The Lorenz system with log-normal σ, ρ, β, in given units."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale
        self.parameter = nn.Parameter(torch.tensor([[0.0] * 3, [math.log(0.1)] * 3]))

    def draw(self, *shape: int) -> torch.Tensor | None:
        return (self.parameter[0] + self.parameter[1].exp() * torch.randn(*shape, 1, 3)).exp()

    def value(self, z: torch.Tensor, draw: torch.Tensor | None) -> torch.Tensor:
        assert draw is not None
        (x, y, w), (sigma, rho, beta) = (self.scale * z).unbind(-1), draw.unbind(-1)
        return torch.stack([sigma * (y - x), x * (rho - w) - y, x * y - beta * w], dim=-1) / self.scale

    def jacobian(self, z: torch.Tensor, draw: torch.Tensor | None) -> torch.Tensor:
        assert draw is not None
        x, y, w = (self.scale * z).unbind(-1)
        sigma, rho, beta = (p.expand_as(x) for p in draw.unbind(-1))
        zero, one = torch.zeros_like(x), torch.ones_like(x)
        rows = ((-sigma, sigma, zero), (rho - w, -one, -x), (y, x, -beta))
        return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)

    def kl(self) -> torch.Tensor:
        mean, log_std = self.parameter
        return (-log_std - 0.5 + ((2 * log_std).exp() + mean**2) / 2).sum()


class FrameEncoder(nn.Module):
    """Two stride-2 convolutions and a linear layer on a frame and its successors' differences from it."""

    def __init__(self, frames: int, size: int, out: int):
        super().__init__()
        self.frames, self.size = frames, size
        stack = [nn.Conv2d(frames, 32, 4, 2, 1), nn.GroupNorm(8, 32), nn.SiLU()]
        stack += [nn.Conv2d(32, 64, 4, 2, 1), nn.GroupNorm(8, 64), nn.SiLU(), nn.Flatten()]
        self.net = nn.Sequential(*stack, nn.Linear(64 * (size // 4) ** 2, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = x.reshape(-1, self.frames, self.size, self.size)
        images = torch.cat([images[:, :1], images[:, 1:] - images[:, :1]], dim=1)
        return self.net(images).reshape(*x.shape[:-1], -1)


class FrameDecoder(nn.Module):
    """A linear layer and two transposed convolutions."""

    def __init__(self, latent: int, size: int):
        super().__init__()
        stack = [nn.Linear(latent, 64 * (size // 4) ** 2), nn.SiLU(), nn.Unflatten(-1, (64, size // 4, size // 4))]
        stack += [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.GroupNorm(8, 32), nn.SiLU()]
        self.net = nn.Sequential(*stack, nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Flatten())

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.net(z.reshape(-1, z.shape[-1])).reshape(*z.shape[:-1], -1)


class TorchModel(nn.Module):
    """Window encoder, deep kernel, drift, decoder (none: the state is what is observed), log-normal diffusion and noise."""

    def __init__(
        self,
        *,
        channels: int,
        latent: int,
        lookahead: int,
        encoder: nn.Module,
        decoder: nn.Module | None,
        drift: NetDrift | UncertainDrift | LorenzDrift,
        kernel: Sequence[int],
        activation: str,
        noise: float | None,
        rotation: bool,
        num_decoded: int | None = None,
        pixels: bool = False,
    ):
        super().__init__()
        self.latent, self.lookahead, self.rotation, self.num_decoded = latent, lookahead, rotation, num_decoded
        self.encoder, self.decoder = encoder, decoder
        self.drift: NetDrift | UncertainDrift | LorenzDrift = drift
        self.kernel = mlp((1, *kernel, 1), activation)
        self.log_lengthscale = nn.Parameter(torch.tensor(math.log(0.07)))
        self.log_noise = nn.Parameter(torch.tensor(math.log(1e-3)))
        self.diffusion = nn.Parameter(torch.tensor([[math.log(1e-2)] * latent, [math.log(0.1)] * latent]))
        self.known_noise, self.pixels = noise, pixels
        if noise is None and not pixels:
            self.noise = nn.Parameter(torch.tensor([[math.log(1e-2)] * channels, [math.log(0.1)] * channels]))
        self.initial = nn.Parameter(torch.zeros(2, latent))

    def step_loss(self, times: torch.Tensor, values: torch.Tensor, num_draws: int, num_times: int) -> torch.Tensor:
        """−ELBO of some windows, times rescaled to [−1, 1] with span 2 (`times`: nodes; `values`: with look-ahead rows)."""
        (windows, nodes), latent = times.shape, self.latent
        h = self.encoder(torch.cat([values[:, k : k + nodes] for k in range(self.lookahead + 1)], dim=2))
        if self.decoder is None:
            h = torch.cat([h[..., :latent] + values[:, :nodes], h[..., latent:]], dim=2)
        mean_h = h.mean(1, keepdim=True)
        deviation = h - mean_h
        features = times + self.kernel(times[..., None])[..., 0]
        scale = self.log_lengthscale.exp()
        gram = torch.exp(-0.5 * ((features[:, :, None] - features[:, None]) / scale) ** 2)
        noise = self.log_noise.exp() + 1e-5 * nodes / 256
        factor = torch.linalg.cholesky(gram + noise * torch.eye(nodes))
        weights = torch.cholesky_solve(deviation, factor)
        at_nodes = mean_h + deviation - noise * weights
        m, log_s = at_nodes[..., :latent], at_nodes[..., latent:]

        strata = (torch.arange(num_times) + torch.rand(windows, num_draws, num_times)) / num_times
        query = (2 * strata - 1).reshape(windows, -1, 1)
        feature, rate = tangents(self.kernel, query, torch.ones_like(query))
        feature, rate = query + feature, 1 + rate
        distance = (feature - features[:, None]) / scale
        k = torch.exp(-0.5 * distance**2)
        k_rate = -k * distance * rate / scale
        shape = (windows, num_draws, num_times, 2 * latent)
        value, value_rate = (mean_h + k @ weights).reshape(shape), (k_rate @ weights).reshape(shape)
        mt, lt = value[..., :latent], value[..., latent:]
        mt_rate, lt_rate = value_rate[..., :latent], value_rate[..., latent:]
        q = (self.diffusion[0] + self.diffusion[1].exp() * torch.randn(windows, num_draws, 1, latent)).exp()
        epsilon = torch.randn(windows, num_draws, num_times, latent)
        std = (0.5 * lt).exp()
        draw = self.drift.draw(windows, num_draws)
        prior = self.drift.value(mt + std * epsilon, draw)
        r = mt_rate + 0.5 * lt_rate * std * epsilon - 0.5 * q * epsilon / std - prior
        if self.rotation:
            r = r + self._turn(self.drift.jacobian(mt, draw), std, q, epsilon)
        path_kl = (r**2 / q).sum() / (num_draws * num_times)  # ½ · span 2

        gap = log_s[:, 0] - self.initial[1]
        squared = (m[:, 0] - self.initial[0]) ** 2 * (-self.initial[1]).exp()
        initial_kl = 0.5 * (gap.exp() + squared - 1 - gap).sum()
        kl = path_kl + initial_kl + self._log_normal_kl(self.diffusion) + self.drift.kl()
        if self.known_noise is None and not self.pixels:
            kl = kl + self._log_normal_kl(self.noise)
        return -(self._log_likelihood(m, log_s, values[:, :nodes], num_draws) - kl) / values[:, :nodes].numel()

    def _log_likelihood(self, m: torch.Tensor, log_s: torch.Tensor, x: torch.Tensor, num_draws: int) -> torch.Tensor:
        decoded = num_draws if self.num_decoded is None else self.num_decoded
        z = m + (0.5 * log_s).exp() * torch.randn(decoded, *m.shape)
        output = z if self.decoder is None else self.decoder(z)
        if self.pixels:
            target = x.expand_as(output)
            return -nn.functional.binary_cross_entropy_with_logits(output, target, reduction="sum") / decoded
        if self.known_noise is None:
            draw = self.noise[0] + self.noise[1].exp() * torch.randn(decoded, len(m), 1, x.shape[-1])
        else:
            draw = torch.full((1,), 2 * math.log(self.known_noise))
        error = (x - output) ** 2
        return -0.5 * (error * (-draw).exp() + draw + math.log(2 * math.pi)).sum() / decoded

    def _turn(self, jacobian: torch.Tensor, std: torch.Tensor, q: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        weighted = jacobian * q[..., None, :]
        variance = std**2
        crossed = q[..., None, :] * variance[..., :, None]
        turn = variance[..., :, None] * (weighted - weighted.mT) / (crossed + crossed.mT)
        return (turn @ (std * epsilon)[..., None])[..., 0]

    @staticmethod
    def _log_normal_kl(parameter: torch.Tensor) -> torch.Tensor:
        mean, log_std = parameter
        return (math.log(3.0) - log_std - 0.5 + ((2 * log_std).exp() + (mean - math.log(0.1)) ** 2) / 18).sum()


class TorchLatentSDE(nn.Module):
    """A latent SDE trained by torchsde's adjoint, with the networks of the model it is compared with.

    A GRU reads the window backwards; its states steer the posterior's drift; one path of Euler steps, one for each observation.
    """

    noise_type, sde_type = "diagonal", "ito"

    def __init__(
        self,
        channels: int,
        latent: int,
        *,
        drift: Sequence[int],
        decoder: Sequence[int],
        activation: str,
        hidden: int = 32,
    ):
        super().__init__()
        self.latent = latent
        self.reader = nn.GRU(channels, hidden)
        self.first = nn.Linear(hidden, 2 * latent)
        self.prior = mlp((latent, *drift, latent), activation)
        self.steered = mlp((latent + hidden, *drift, latent), activation)
        self.decoder = mlp((latent, *decoder, channels), activation)
        self.spread = nn.Parameter(torch.full((latent,), math.log(0.1)))
        self.log_noise = nn.Parameter(torch.full((channels,), math.log(1e-2)))
        self.context = torch.zeros(0)
        self.times = torch.zeros(0)

    def h(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.prior(z)

    def f(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        row = torch.searchsorted(self.times, t.detach()).clamp(max=len(self.times) - 1)
        return self.steered(torch.cat([z, self.context[row].expand(len(z), -1)], dim=1))

    def g(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.spread.exp().expand_as(z)

    def step_loss(self, times: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        import torchsde

        read, _ = self.reader(values.flip(0)[:, None])
        self.context, self.times = read[:, 0].flip(0), times
        mean, log_std = self.first(self.context[0]).chunk(2)
        z0 = (mean + log_std.exp() * torch.randn(self.latent))[None]
        options = {"dt": float(times[1] - times[0]), "method": "euler", "adjoint_method": "euler", "logqp": True}
        names = {"drift": "f", "diffusion": "g", "prior_drift": "h"}
        states, path_kl = torchsde.sdeint_adjoint(
            self, z0, times, names=names, adjoint_params=(*self.parameters(), self.context), **options
        )
        error = (values - self.decoder(states[:, 0])) ** 2
        fit = -0.5 * (error * (-self.log_noise).exp() + self.log_noise + math.log(2 * math.pi)).sum()
        start_kl = 0.5 * (mean**2 + (2 * log_std).exp() - 1 - 2 * log_std).sum()
        return -(fit - path_kl.sum() - start_kl) / values.numel()
