"""Report of `pretrain verify`: a table on the terminal that grows row by row, a line about scoring, and verify.json."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import atomic_write
from pretrain.checkpoint.identity import versions
from pretrain.run_dir.json_lines import finite
from pretrain.run_length.ramp import batch_sizes
from pretrain.verify.departure import EXACT, QUANTITIES
from pretrain.verify.jobs import Job
from pretrain.verify.run import JobResult
from pretrain.verify.scoring import BOUND, ScoringCheck

_COLUMNS = {
    "initial weights": "weights",
    "token count": "tokens",
    "gradient norm": "grad norm",
    "router biases": "biases",
    "router scores": "router",
    "route flips": "rerouted",
}
_WIDTH = 11


class Table:
    """Prints each row as it is added, and writes all rows so far to `path`."""

    def __init__(self, path: Path, steps: int, jobs: Sequence[Job]) -> None:
        config = jobs[0].config
        model, batch = config.model, config.batch
        self._path, self._config, self._steps, self._planned = path, config, steps, len(jobs)
        self._title_width = max(len(job.title) for job in jobs)
        self._rows: list[JobResult] = []
        self._scoring: ScoringCheck | None = None
        experts = model.experts
        shown = {
            "flips": config.generator is not None,
            "router biases": experts is not None and experts.selection_bias,
            **dict.fromkeys(("routes", "router scores", "route flips"), experts is not None),
        }
        self._quantities = [name for name in QUANTITIES if shown.get(name, True)]
        names = "".join(_COLUMNS.get(name, name).rjust(_WIDTH) for name in self._quantities)
        print(
            f"{model.family} of width {model.hidden}, {' or '.join(map(str, batch_sizes(batch)))} sequences of "
            f"{model.sequence_length} tokens, {steps} steps: largest departure from one rank in fp32\n"
            f"{'layout'.ljust(self._title_width)}  layers  precision{names}",
            flush=True,
        )

    def add(self, row: JobResult) -> None:
        """Prints a line, and another for each quantity that departs."""
        self._rows.append(row)
        self._write()
        config = row.job.config
        sizes = f"{config.model.layers:>{len('layers')}}  {config.precision.ljust(len('precision'))}"
        start = f"{row.job.title.ljust(self._title_width)}  {sizes}"
        if row.verdict is None:
            print(f"{start}  FAILED\n    {row.error}", flush=True)
            return
        cells = (_cell(name, row.verdict.largest[name]).rjust(_WIDTH) for name in self._quantities)
        print(f"{start}{''.join(cells)}  {'same run' if row.same else 'DEPARTS'}", flush=True)
        if row.verdict.flips.flipped:
            print(f"    {row.verdict.flips}", flush=True)
        if row.verdict.route_flips.flipped:
            print(f"    {row.verdict.route_flips}", flush=True)
        for departure in row.verdict.departures:
            print(f"    {departure}", flush=True)

    def add_scoring(self, check: ScoringCheck) -> None:
        """Prints the last line."""
        self._scoring = check
        self._write()
        print(
            f"scores of one rank in fp32: {check.log_softmax:.1e} nats from the log-softmax of its logits, "
            f"{check.training_loss:.1e} from its training loss  {'right' if check.same else 'DEPARTS'}",
            flush=True,
        )
        if not check.same:
            print(f"    scoring departs from training; rounding explains {BOUND:.1e}", flush=True)

    def _write(self) -> None:
        check = self._scoring
        finished = len(self._rows) == self._planned and check is not None
        content = {
            "same": finished and all(row.same for row in self._rows) and check is not None and check.same,
            "finished": finished,
            "steps": self._steps,
            "config": self._config.model_dump(mode="json"),
            "versions": versions(),
            "layouts": [_plain(row) for row in self._rows],
            "scoring": check and {**vars(check), "same": check.same, "rounding_explains": BOUND},
        }
        atomic_write(self._path, json.dumps(finite(content), indent=1, allow_nan=False).encode() + b"\n")


def _cell(quantity: str, by: float) -> str:
    if quantity in EXACT:
        return "equal" if by == 0 else f"{by:,.0f} wrong"
    return f"{by:.1e}"


def _plain(row: JobResult) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "layout": str(row.job.layout),
        "ranks": row.job.layout.world,
        "precision": row.job.config.precision,
        "layers": row.job.config.model.layers,
        "micro_sequences": row.job.config.batch.micro_sequences,
        "same": row.same,
        "error": row.error,
        "largest": verdict and verdict.largest,
        "flips": verdict and vars(verdict.flips),
        "route_flips": verdict and vars(verdict.route_flips),
        "rounding_explains": row.bounds,
        "departures": [{**vars(departure)} for departure in verdict.departures] if verdict else [],
    }
