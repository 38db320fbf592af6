"""How far rounding takes a run from itself: on one rank, with micro-batches of 2 rows, and with one of all.

    python -m tests.benchmarks.rounding bf16 4 gpt bert t5 mixtral
    python -m tests.benchmarks.rounding fp8 4 gpt bert t5 mixtral

Prints the largest differences over 8 steps at a rate of 1e-3: of the loss in nats, of the gradient norm, and of the
weights, relative to how far they have moved. A minute of a processor for each family.
"""

import argparse
from typing import Any

import numpy as np

from pretrain.data.synthetic import SyntheticStream
from tests.helpers.families import FAMILIES, family_config
from tests.helpers.ranks import meet_again, run_ranks
from tests.helpers.tiny import build_engine, tiny_config, whole_state

STEPS, RATE = 8, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("precision")
    parser.add_argument("rows", type=int)
    parser.add_argument("families", nargs="+", choices=["gpt", *FAMILIES], metavar="FAMILY")
    arguments = parser.parse_args()
    for family in arguments.families:
        labels, loss, norm, weights = run_ranks(1, _apart, family, arguments.precision, arguments.rows, timeout_s=900)[
            0
        ]
        print(f"{family:12} {labels:5.0f} labels: loss {loss:.1e}  norm {norm:.1e}  weights {weights:.1e}", flush=True)


def _apart(family: str, precision: str, rows: int) -> tuple[float, float, float, float]:
    (curve, start, end), (other_curve, _, other_end) = (_run(family, precision, rows, micro) for micro in (2, rows))
    losses, norms, labels = np.array(curve).T
    other_losses, other_norms, _ = np.array(other_curve).T
    apart = sum(np.square(end[name] - other_end[name], dtype=np.float64).sum() for name in end)
    moved = sum(np.square(end[name] - start[name], dtype=np.float64).sum() for name in end)
    loss, norm = np.abs(losses - other_losses).max(), np.abs(norms / other_norms - 1).max()
    return float(labels[0]), float(loss), float(norm), float(np.sqrt(apart / moved))


def _run(family: str, precision: str, rows: int, micro_rows: int) -> tuple[list[Any], Any, Any]:
    sections = {"precision": precision, "batch": {"sequences": rows, "micro_sequences": micro_rows}}
    config = tiny_config(**sections) if family == "gpt" else family_config(family, **sections)
    engine, source, found = build_engine(config), SyntheticStream(config), []
    start = _weights(engine)
    for step in range(1, STEPS + 1):
        result = engine.train_step(source.batch((step - 1) * rows, rows, 0, 1), RATE, step)
        found.append((result.loss_sum / result.token_count, result.grad_norm, result.token_count))
    end = _weights(engine)
    meet_again()
    return found, start, end


def _weights(engine: Any) -> dict[str, np.ndarray]:
    return {name: value for name, value in whole_state(engine).items() if name.startswith("model/")}


if __name__ == "__main__":
    main()
