"""The history and the checkpoints that training leaves below a run's folder, and finding them again to resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .checkpoint import from_arrays, read_bundle, to_arrays, write_bundle
from .loop import Best, State
from .progress import Row


def write_history(folder: Path, rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "history.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read_history(folder: Path, until: int | None = None) -> list[Row]:
    path = folder / "history.jsonl"
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # a kill in the middle of a line; the rows before it are whole
            break
    return [row for row in rows if until is None or row["step"] <= until]


class Recorder:
    """Writes history and checkpoints below a run's folder, or nothing without one; finds them again to resume."""

    def __init__(self, out: str | Path | None, identity: Mapping[str, object]):
        self.folder = None if out is None else Path(out)
        self.identity = identity

    def resume(self, state: State) -> tuple[State, Best, list[Row]]:
        if self.folder is None:
            raise ValueError("resume=True needs out=, the folder of the run to continue. Pass out='run/'.")
        header, files = read_bundle(self.folder / "checkpoint", "latest")
        for name, value in self.identity.items():
            if header.get(name) != value:
                raise ValueError(
                    f"the checkpoint in {self.folder} belongs to another {name}; resume with the same one, or start anew in "
                    "another folder."
                )
        where = str(self.folder / "checkpoint")
        state = from_arrays(state, files["latest"], where=where)
        best = Best()
        if "best" in files:
            best = Best(
                from_arrays(state.model, files["best"], where=where), header["best_score"], header["since_best"]
            )
        return state, best, read_history(self.folder, int(state.step))

    def begin(self, rows: Sequence[Row]) -> None:
        if self.folder is not None:
            write_history(self.folder, rows)

    def row(self, row: Row) -> None:
        if self.folder is not None:
            with (self.folder / "history.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")

    def checkpoint(self, state: State, best: Best) -> None:
        if self.folder is None:
            return
        header: dict[str, object] = {**self.identity, "step": int(state.step), "since_best": best.since}
        files = {"latest": to_arrays(state)}
        if best.model is not None:
            header["best_score"] = best.score
            files["best"] = to_arrays(best.model)
        write_bundle(self.folder / "checkpoint", "latest", header, files)
