"""Which errors mean that other ranks are gone. A run that loses one is in tests/end_to_end/test_train.py."""

import pytest
from torch.distributed import DistNetworkError

from data_pipeline.errors import DataError
from pretrain.errors import RunError
from pretrain.process.peers import lost_peers

PAIR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] "
CLOSED = RuntimeError(
    f"{PAIR}Connection closed by peer [127.0.0.1]:34567. This is typically caused by a remote worker crashing. GLHF!"
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CLOSED, "Connection closed by peer [127.0.0.1]:34567;"),
        (RuntimeError(f"{PAIR}Read error [127.0.0.1]:3: Connection reset by peer"), "Read error [127.0.0.1]:3: Conn"),
        (
            RuntimeError("[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 600000ms for send operation"),
            "Timed out waiting 600000ms for send operation",
        ),
        (RuntimeError("NCCL error\nncclRemoteError: ... or a remote process exiting prematurely."), "NCCL error;"),
        (DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."), "Failed to recv, got 0 b"),
    ],
)
def test_a_rank_that_is_gone_is_one_sentence(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    said = str(lost_peers(error, " at step 17", "run the same command again to resume from step 8"))
    assert said.startswith(f"rank 3 lost its peers at step 17: {reason}")
    assert said.endswith("; run the same command again to resume from step 8")
    assert "\n" not in said


def test_a_save_that_met_it_says_so() -> None:
    failed = RunError(f"saving runs/a/checkpoints/step-00000008 failed: {CLOSED}")
    assert lost_peers(failed) is None, "nothing says that it is of a rank"
    failed.__cause__ = CLOSED
    assert "lost its peers: saving runs/a/checkpoints/step-00000008 failed: Connection closed" in str(
        lost_peers(failed)
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError(f"{PAIR}op.preamble.length <= op.nbytes. 8 vs 4"),  # ranks that disagree: a fault of the program
        ConnectionResetError(104, "Connection reset by peer"),  # of a server that data comes from
        DataError("https://host/d: Connection reset by peer"),
        RunError("the loss is not finite"),
    ],
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert lost_peers(error) is None
