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


class TorchModel(nn.Module):
    """Window encoder, deep kernel, drift, decoder, log-normal diffusion and noise."""

    def __init__(
        self,
        channels: int,
        latent: int,
        *,
        lookahead: int,
        encoder: Sequence[int],
        drift: Sequence[int],
        kernel: Sequence[int],
        decoder: Sequence[int] | None,
        activation: str,
        noise: float | None,
        rotation: bool,
        num_decoded: int | None = None,
    ):
        super().__init__()
        self.latent, self.lookahead, self.rotation, self.num_decoded = latent, lookahead, rotation, num_decoded
        self.encoder = mlp((channels * (lookahead + 1), *encoder, 2 * latent), activation)
        self.kernel = mlp((1, *kernel, 1), activation)
        self.drift = mlp((latent, *drift, latent), activation)
        self.decoder = None if decoder is None else mlp((latent, *decoder, channels), activation)
        self.log_lengthscale = nn.Parameter(torch.tensor(math.log(0.07)))
        self.log_noise = nn.Parameter(torch.tensor(math.log(1e-3)))
        self.diffusion = nn.Parameter(torch.tensor([[math.log(1e-2)] * latent, [math.log(0.1)] * latent]))
        self.known_noise = noise
        if noise is None:
            self.noise = nn.Parameter(torch.tensor([[math.log(1e-2)] * channels, [math.log(0.1)] * channels]))
        self.initial = nn.Parameter(torch.zeros(2, latent))

    def features(self, t: torch.Tensor) -> torch.Tensor:
        return t + self.kernel(t)

    def step_loss(self, times: torch.Tensor, values: torch.Tensor, num_draws: int, num_times: int) -> torch.Tensor:
        """−ELBO of one window, times rescaled to [−1, 1] with span 2 (`times`: nodes; `values`: with look-ahead rows)."""
        nodes, latent = len(times), self.latent
        stacked = torch.cat([values[k : k + nodes] for k in range(self.lookahead + 1)], dim=1)
        h = self.encoder(stacked)
        if self.decoder is None:
            h = torch.cat([h[:, :latent] + values[:nodes], h[:, latent:]], dim=1)
        mean_h = h.mean(0)
        deviation = h - mean_h
        features = self.features(times[:, None])[:, 0]
        scale = self.log_lengthscale.exp()
        gram = torch.exp(-0.5 * ((features[:, None] - features[None]) / scale) ** 2)
        noise = self.log_noise.exp() + 1e-5 * nodes / 256
        factor = torch.linalg.cholesky(gram + noise * torch.eye(nodes))
        weights = torch.cholesky_solve(deviation, factor)
        at_nodes = mean_h + deviation - noise * weights
        m, log_s = at_nodes[:, :latent], at_nodes[:, latent:]

        strata = (torch.arange(num_times) + torch.rand(num_draws, num_times)) / num_times
        query = (2 * strata - 1).reshape(-1, 1)
        feature, rate = tangents(self.kernel, query, torch.ones_like(query))
        feature, rate = query + feature, 1 + rate
        distance = (feature - features[None]) / scale
        k = torch.exp(-0.5 * distance**2)
        k_rate = -k * distance * rate / scale
        value = mean_h + k @ weights
        value_rate = k_rate @ weights
        mt, lt = value[:, :latent], value[:, latent:]
        mt_rate, lt_rate = value_rate[:, :latent], value_rate[:, latent:]
        log_q = self.diffusion[0] + self.diffusion[1].exp() * torch.randn(num_draws, latent)
        q = log_q.exp().repeat_interleave(num_times, 0)
        epsilon = torch.randn(num_draws * num_times, latent)
        std = (0.5 * lt).exp()
        r = mt_rate + 0.5 * lt_rate * std * epsilon - 0.5 * q * epsilon / std - self.drift(mt + std * epsilon)
        if self.rotation:
            r = r + self._turn(mt, std, q, epsilon)
        path_kl = (r**2 / q).sum() / (num_draws * num_times)  # ½ · span 2

        decoded = num_draws if self.num_decoded is None else self.num_decoded
        z = m + (0.5 * log_s).exp() * torch.randn(decoded, nodes, latent)
        output = z if self.decoder is None else self.decoder(z)
        if self.known_noise is None:
            draw = self.noise[0] + self.noise[1].exp() * torch.randn(decoded, 1, values.shape[1])
        else:
            draw = torch.full((1,), 2 * math.log(self.known_noise))
        error = (values[:nodes] - output) ** 2
        log_likelihood = -0.5 * (error * (-draw).exp() + draw + math.log(2 * math.pi)).sum() / decoded
        gap = log_s[0] - self.initial[1]
        squared = (m[0] - self.initial[0]) ** 2 * (-self.initial[1]).exp()
        initial_kl = 0.5 * (gap.exp() + squared - 1 - gap).sum()
        kl = path_kl + initial_kl + self._log_normal_kl(self.diffusion)
        if self.known_noise is None:
            kl = kl + self._log_normal_kl(self.noise)
        return -(log_likelihood - kl) / values[:nodes].numel()

    def _turn(self, m: torch.Tensor, std: torch.Tensor, q: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        directions = torch.eye(self.latent).expand(len(m), -1, -1)
        jacobian = tangents(self.drift, m, directions)[1].mT
        weighted = jacobian * q[:, None, :]
        variance = std**2
        crossed = q[:, None, :] * variance[:, :, None]
        turn = variance[:, :, None] * (weighted - weighted.mT) / (crossed + crossed.mT)
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
