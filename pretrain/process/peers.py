"""Lost peers: the one-line error of a rank whose peers are gone, in place of the traceback of gloo or NCCL."""

import re

from pretrain.errors import RunError
from pretrain.process import watchdog_thread
from pretrain.process.ranks import global_rank

# Messages of gloo and NCCL about a lost rank, as RuntimeError; errors of data servers are of another class.
_GONE = re.compile(
    r"gloo.*(closed by peer|reset by peer|Broken pipe|Socket closed|Timed out|timeout)|remote process exiting"
)
_WHERE = re.compile(r"\[[^\]]*\.cc:[0-9]+\] ")  # position in the library's source


class LostPeersError(RunError):
    """Peers are gone. Every remaining rank reports it, as rank 0 may be among the lost."""


def lost_peers(error: BaseException, where: str = "", then: str = "start all ranks again") -> LostPeersError | None:
    """Error that describes `error` if it means that other ranks are gone: `where` in the run, and what to do `then`;
    None for any other error. If they are gone because the run hung, which they reported, this process exits."""
    cause = error.__cause__ if isinstance(error, RunError) else error
    of_network = type(cause).__name__ == "DistNetworkError"  # torch's, of the rendezvous store
    if not of_network and not (isinstance(cause, RuntimeError) and _GONE.search(str(cause))):
        return None
    watchdog_thread.exit_if_hung()
    reason = _WHERE.sub("", str(error).splitlines()[0]).split(". ")[0]  # without torch's own advice
    return LostPeersError(f"rank {global_rank()} lost its peers{where}: {reason}; {then}")
