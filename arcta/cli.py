"""The command line: a thin layer over the task API. Heavy imports wait until a command runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cyclopts

app = cyclopts.App(
    name="arcta", help="Latent stochastic differential equations from noisy time series, learned without a solver."
)


def compilation_cache() -> Path:
    """Keep compiled programs between runs, so that a second run of the same shapes does not compile again."""
    import jax

    base = os.environ.get("ARCTA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arcta"
    folder = Path(base) / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


@app.command
def demo(*, out: Path = Path("demo"), key: int = 0, quiet: bool = False) -> None:
    """Learn Lotka–Volterra from noisy data, forecast it, and write a report: `arcta demo --out demo`.

    Parameters
    ----------
    out
        Folder for the run, the report and its pictures.
    key
        The training seed.
    quiet
        Print the result only.
    """
    compilation_cache()
    from . import demo as lotka_volterra

    fitted, scores, page = lotka_volterra.run(out, key=key, progress=not quiet)
    values = int(fitted.history[-1]["drift_evaluations"])
    print(f"trained on 50 s of Lotka–Volterra: {values:,} drift values, {fitted.seconds:.2f} s after compilation")
    for name, value in scores.items():
        print(f"  {name:<12} {value:.4f}")
    print(f"report: {page}")


def main() -> None:
    """Entry point: one sentence and exit code 2 for what the user can mend, 130 for Ctrl-C."""
    try:
        app()
    except ValueError as error:
        print(f"arcta: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
