"""Plants every fault, measures what finds it, and writes results.json and docs/museum.md:

python -m tests.museum [NAME ...]     # of some exhibits alone
python -m tests.museum --page         # the page alone, from what was measured
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.museum import page, results
from tests.museum.exhibits import EXHIBITS


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the museum of silent faults and write its page.")
    parser.add_argument("names", nargs="*", help="exhibits to measure again (default: all)")
    parser.add_argument("--page", action="store_true", help="write the page from results.json, measuring nothing")
    options = parser.parse_args()
    known = {exhibit.name for exhibit in EXHIBITS}
    if unknown := sorted(set(options.names) - known):
        sys.exit(f"unknown exhibits: {', '.join(unknown)}")
    before = results.read() if results.PATH.exists() else {}
    measured = {name: found for name, found in before.items() if name in known}
    for exhibit in EXHIBITS if not options.page else ():
        if options.names and exhibit.name not in options.names:
            continue
        started_s = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            measured[exhibit.name] = found = results.measure(exhibit, Path(folder))
        said = "MISSED" if found is None else found.report
        print(f"{exhibit.name}: {said} ({time.perf_counter() - started_s:.0f} s)", flush=True)
        results.write(measured)
    page.PATH.write_text(page.page(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
