"""Other ranks that are gone: what a rank that meets them no more says, once, in place of its library's traceback."""

import re

from pretrain.errors import RunError
from pretrain.process import watch
from pretrain.process.ranks import global_rank

# What gloo and NCCL say of a rank that is gone, in a RuntimeError, which no error of a server that data comes from is.
_GONE = re.compile(
    r"gloo.*(closed by peer|reset by peer|Broken pipe|Socket closed|Timed out|timeout)|remote process exiting"
)
_WHERE = re.compile(r"\[[^\]]*\.cc:[0-9]+\] ")  # a line of the library's source


class LostPeersError(RunError):
    """Each rank that is left has its own to say, as rank 0 may be among the lost."""


def lost_peers(error: BaseException, where: str = "", then: str = "start all ranks again") -> LostPeersError | None:
    """What to say of `error` if it means that other ranks are gone: `where` in the run, and what to do `then`. Where
    they have gone because the run hung, of which they have said enough, this process goes, too."""
    cause = error.__cause__ if isinstance(error, RunError) else error
    of_network = type(cause).__name__ == "DistNetworkError"  # torch's, of the store where ranks meet
    if not of_network and not (isinstance(cause, RuntimeError) and _GONE.search(str(cause))):
        return None
    watch.leave_if_over()
    reason = _WHERE.sub("", str(error).splitlines()[0]).split(". ")[0]  # without torch's own advice
    return LostPeersError(f"rank {global_rank()} lost its peers{where}: {reason}; {then}")
