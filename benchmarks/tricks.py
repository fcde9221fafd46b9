"""What each trick that is there for speed alone is worth: training steps with it and without, in turns in one run.

    python benchmarks/tricks.py                    # `make bench` stores it in benchmarks/results/tricks.json

One thread on one core, medians. A trick is taken out by putting the plain way in its place, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from against import DEFAULT, HERE, in_turns, launch, make, take_steps

MOCAP, ALL_TEN = "MOCAP, one draw decoded", "MOCAP, all ten draws decoded"
PAPER, OURS = "Lotka–Volterra, the paper's", "Lotka–Volterra, ours"


def compile_as_usual() -> None:
    from arcta.runtime import compile as compilation

    compilation.LIGHT.clear()


def differentiate_the_solve() -> None:
    import jax
    import jax.numpy as jnp

    from arcta.parts import kernel

    def solve(scaled: Any, share: Any, noise: Any, right: Any) -> Any:
        gaps = [points[None, :] - points[:, None] for points in scaled]
        matrix = kernel._mixed(kernel._parts(gaps), share) + noise * jnp.eye(len(right))
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), right)

    kernel.solve_kernel = solve


def map_over_windows() -> None:
    import jax

    from arcta.bound import objective

    def sum_over(function: Any, model: Any, items: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(function, in_axes=(None, 0))(model, items))

    objective.sum_over = sum_over


def decode_state_by_state() -> None:
    from arcta.parts import decoders

    decoders.NetworkDecoder.at_many = decoders.AbstractDecoder.at_many


def differentiate_the_drift() -> None:
    import jax

    from arcta.bound import residual

    def value_and_jacobian(drift: Any, t: Any, z: Any, m: Any, u: Any, θ: Any) -> Any:
        return drift(t, z, u, θ), jax.jacfwd(lambda z: drift(t, z, u, θ))(m)

    residual.value_and_jacobian = value_and_jacobian


def use_the_usual_tanh() -> None:
    import jax.numpy as jnp

    from arcta.parts import networks

    networks.ACTIVATIONS["tanh"] = jnp.tanh


def draw_in_every_kernel() -> None:
    import jax

    from arcta.bound import elbo

    elbo.normal = jax.random.normal


def update_leaf_by_leaf() -> None:
    import equinox as eqx
    import jax
    import numpy as np

    from arcta.training import loop, prepare

    def start(model: Any, training: Any, *, key: Any) -> Any:
        model = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)) if eqx.is_array(leaf) else leaf, model)
        moments = training.optimiser().init(eqx.filter(model, eqx.is_inexact_array))
        return loop.State(model, moments, jax.device_put(np.int32(0)), key)

    prepare.start = start
    loop.ravel_pytree = lambda tree: (tree, lambda same: same)


# The trick, where it stands, what takes its place, and the models that show it.
TRICKS: dict[str, tuple[str, Callable[[], None], tuple[str, ...]]] = {
    "light compilation": ("runtime/compile", compile_as_usual, (OURS, DEFAULT)),
    "derivative of the kernel's solve": ("parts/kernel", differentiate_the_solve, (MOCAP, PAPER)),
    "windows one after the other": ("runtime/sums", map_over_windows, ("Lorenz",)),
    "normal numbers computed once": ("runtime/random", draw_in_every_kernel, ("Lorenz", ALL_TEN)),
    "all states decoded in one product": ("parts/decoders", decode_state_by_state, (ALL_TEN,)),
    "drift and directions in one product": ("parts/networks", differentiate_the_drift, (OURS, DEFAULT)),
    "tanh that keeps its argument": ("runtime/activations", use_the_usual_tanh, (MOCAP,)),
    "Adam on one vector": ("training/loop", update_leaf_by_leaf, (OURS, MOCAP)),
}


def measure(trick: str, title: str, repeats: int) -> dict[str, Any]:
    words = (str(HERE / "benchmarks" / "tricks.py"), "--title", title)
    processes = {"with": launch(HERE, *words), "without": launch(HERE, *words, "--without", trick)}
    found = in_turns(processes, repeats)
    return {
        "where": TRICKS[trick][0],
        "step": found["without"]["step_ms"] / found["with"]["step_ms"],
        "first_step": found["without"]["first_step_s"] / found["with"]["first_step_s"],
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="tricks whose name holds one of these words")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--title", help=argparse.SUPPRESS)
    parser.add_argument("--without", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.title:
        if options.without:
            TRICKS[options.without][1]()
        take_steps(make(HERE, options.title))
        return
    from arcta.outside.study import machine

    result: dict[str, Any] = {"settings": {"repeats": options.repeats}, "machine": machine(), "tricks": {}}
    for trick, (_, _, titles) in TRICKS.items():
        if any(word in trick for word in options.only):
            rows = result["tricks"][trick] = {title: measure(trick, title, options.repeats) for title in titles}
            for title, row in rows.items():
                text = f"step {row['step']:.2f}, first step {row['first_step']:.2f}"
                print(f"{trick:<36} {title:<30} without it / with it: {text}", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
