"""The most memory that a process has held."""

import subprocess
import sys

import numpy as np

from pretrain.observe.memory import Peak, peak, size

_GROWS = """
import numpy as np
from pretrain.observe.memory import peak
before = peak().host
held = np.ones(10**7)  # 80 MB
now = peak().host
del held
print(now - before, peak().host - now)
"""


def test_the_peak_grows_with_what_is_held_and_stays_when_it_is_let_go() -> None:
    done = subprocess.run([sys.executable, "-c", _GROWS], capture_output=True, text=True, check=True)
    grown, after = map(int, done.stdout.split())
    assert 60e6 < grown < 100e6
    assert abs(after) < 1e6, "the kernel counts in lots"


def test_a_process_does_not_count_what_its_parent_held() -> None:
    held = np.ones(3 * 10**8 // 8)
    printed = "print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    child = subprocess.run([sys.executable, "-c", printed], capture_output=True, text=True, check=True)
    assert int(child.stdout.split()[1]) * 1024 < held.nbytes < peak().host


def test_ranks_exchange_the_largest_of_both() -> None:
    ranks = [Peak(None, 5), Peak(None, 7)]
    assert Peak.decode(np.max([one.encode() for one in ranks], axis=0)) == Peak(None, 7)
    ranks = [Peak(0, 5), Peak(2**40, 4)]
    assert Peak.decode(np.max([one.encode() for one in ranks], axis=0)) == Peak(2**40, 5)


def test_sizes() -> None:
    assert [size(x) for x in (0, 999, 1000, 12_345_678, 1.5e9, 80e9, 2e12)] == [
        *("0 B", "999 B", "1 kB", "12.3 MB", "1.5 GB", "80 GB", "2 TB"),
    ]
