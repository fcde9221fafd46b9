# pyright: reportMissingImports=false
"""The same training step in eager PyTorch: the rival of `step.py`, written as one would write it well.

Everything is batched tensor algebra; one Cholesky per window; kernel time derivatives in closed form with one
`torch.func.jvp` through the small network; Adam with `foreach`. The rotation term is there when asked for; overheads of
the authors' code (a trainer, finite differences) are not copied.
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
    ):
        super().__init__()
        self.latent, self.lookahead, self.rotation = latent, lookahead, rotation
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
        feature, rate = torch.func.jvp(self.features, (query,), (torch.ones_like(query),))  # pyright: ignore
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

        z = m + (0.5 * log_s).exp() * torch.randn(num_draws, nodes, latent)
        output = z if self.decoder is None else self.decoder(z)
        if self.known_noise is None:
            draw = self.noise[0] + self.noise[1].exp() * torch.randn(num_draws, 1, values.shape[1])
        else:
            draw = torch.full((1,), 2 * math.log(self.known_noise))
        error = (values[:nodes] - output) ** 2
        log_likelihood = -0.5 * (error * (-draw).exp() + draw + math.log(2 * math.pi)).sum() / num_draws
        gap = log_s[0] - self.initial[1]
        squared = (m[0] - self.initial[0]) ** 2 * (-self.initial[1]).exp()
        initial_kl = 0.5 * (gap.exp() + squared - 1 - gap).sum()
        kl = path_kl + initial_kl + self._log_normal_kl(self.diffusion)
        if self.known_noise is None:
            kl = kl + self._log_normal_kl(self.noise)
        return -(log_likelihood - kl) / values[:nodes].numel()

    def _turn(self, m: torch.Tensor, std: torch.Tensor, q: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        jacobian = torch.func.vmap(torch.func.jacfwd(self.drift))(m)
        weighted = jacobian * q[:, None, :]
        variance = std**2
        crossed = q[:, None, :] * variance[:, :, None]
        turn = variance[:, :, None] * (weighted - weighted.mT) / (crossed + crossed.mT)
        return (turn @ (std * epsilon)[..., None])[..., 0]

    @staticmethod
    def _log_normal_kl(parameter: torch.Tensor) -> torch.Tensor:
        mean, log_std = parameter
        return (math.log(3.0) - log_std - 0.5 + ((2 * log_std).exp() + (mean - math.log(0.1)) ** 2) / 18).sum()
