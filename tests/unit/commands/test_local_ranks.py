"""Ranks that a command starts on this machine."""

import pytest

from pretrain.commands.local_ranks import check_local_layout, needs_local_ranks
from pretrain.errors import ConfigError
from tests.helpers.small_configs import config


def test_where_ranks_are_missing_the_option_that_starts_them_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = config(parallel={"tensor": 2, "pipeline": 2})
    missing = r"^1 rank does not fit parallel.tensor=2 x .*: start a multiple of 4 ranks, or choose a smaller layout"
    with pytest.raises(ConfigError, match=rf"{missing} \(--nproc 4 starts 4 local ranks\)$"):
        needs_local_ranks(run, None, trains=True)
    with pytest.raises(ConfigError, match=r"^3 ranks do not fit .* \(--nproc 4 starts 4 local ranks\)$"):
        check_local_layout(run, 3)
    monkeypatch.setattr("pretrain.process.local.most_local_ranks", lambda: 3)
    with pytest.raises(ConfigError, match=f"{missing}$"):
        check_local_layout(run, 1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ConfigError, match=f"{missing}$"):  # a launcher starts ranks, not this option
        needs_local_ranks(run, None, trains=True)
