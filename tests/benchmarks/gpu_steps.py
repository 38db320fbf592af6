"""The tables of measured steps in docs/benchmarks.md, of the rows that come with the package, one for each commit.

python -m tests.benchmarks.gpu_steps
"""

from itertools import groupby

from pretrain.plan.measured_steps import MeasuredStep, measured_steps


def tables() -> list[str]:
    """Tables in Markdown, the oldest commit first."""
    return ["\n".join(_lines(list(rows))) for _, rows in groupby(measured_steps(), lambda row: row.commit)]


def _lines(rows: list[MeasuredStep]) -> list[str]:
    head = ["| Case | Steps | s | Tokens/s | MFU |", "|---|---|---|---|---|"]
    return head + [
        f"| `{row.case}` | {row.steps} | {row.step_s:.3f} | {row.tokens_per_s:,} | {row.mfu:.1%} |" for row in rows
    ]


if __name__ == "__main__":
    print("\n\n".join(tables()))
