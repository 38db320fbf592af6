"""The numeric tests as on lesser processors that this one can imitate: `make test-machines`.

    python -m tests.machines [--small] [--workers N]

Tests have to mean the same on every processor: what is equal by construction stays equal, and what depends on the order
of sums is held to a bound that other kernels keep, too.
"""

import argparse
import os
import subprocess
import sys

from tests.helpers.machine import CAPS

NUMERIC = [
    *(
        f"tests/unit/{name}"
        for name in ("attention", "engine", "evaluate", "models", "objectives", "scaling", "verify")
    ),
    "tests/unit/test_dropout.py",
    "tests/multirank",
    "tests/classics",
]
SMALL = ["tests/unit/attention", "tests/unit/engine", "tests/unit/models", "tests/multirank/test_products.py"]
"""what CI runs, for one of the caps"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run numeric tests as on lesser processors.")
    parser.add_argument("--small", action="store_true", help="a part of the tests, without half-precision instructions")
    parser.add_argument("--workers", type=int, default=2, help="processes that share the tests (default: %(default)s)")
    options = parser.parse_args()
    failed = []
    for name, cap in list(CAPS.items())[: 1 if options.small else None]:
        print(f"== {name}: {' '.join(f'{key}={value}' for key, value in cap.items())}", flush=True)
        tests = [*(SMALL if options.small else NUMERIC), "-m", "not slow and not gpu and not cluster"]
        command = [sys.executable, "-m", "pytest", *tests, "-n", str(options.workers)]
        if subprocess.run(command, env={**os.environ, **cap}, check=False).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed as on other processors: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
