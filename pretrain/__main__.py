"""usage: pretrain VERB ...    (or python -m pretrain VERB ...)

Pretrains language models. A run gives the same result on any layout of ranks and after any interruption.

  data build CONFIG       build a tokenized, sharded dataset from text
  data inspect DATASET    check a dataset, show its counts and some text
  data report DATASET     one page of what each step of a build kept, dropped and changed
  data ledger RUN         compare planned with consumed tokens, by source
  data trace RUN          show the documents of a step's batch
  data units DATASET      find the named entities that are masked as a whole
  train CONFIG            train, or resume a run
  plan CONFIG             layouts for a cluster, the best first: seconds, memory, days, cost
  plan attention CONFIG   which keys each layer and head sees, printed and drawn
  plan calibrate RUN      speed of a run's software beside the estimates; without RUN, this machine's
  plan data CONFIG        hours and cores of a build, from a sample of it
  rehearse CONFIG         one rank's memory, work and exchanges, counted without GPUs
  launch slurm CONFIG     train in a supervised Slurm job; launch local CONFIG: on this host
  launch build CONFIG     build a dataset in a Slurm job
  launch kubernetes CONFIG, launch skypilot CONFIG
                          train under the same supervisor on Kubernetes, or through SkyPilot
  runs DIR                table of runs: model, tokens, loss, speed, status
  plot RUN RUN            curves of several runs, as a picture, a page or in the terminal
  profile RUN             where profiled steps go: products, attention, exchanges, optimizer, waiting
  launch status RUN       progress and jobs of a launched run; also launch logs RUN, launch cancel RUN
  scale ladder CONFIG     configs of runs of several sizes; scale fit, scale predict: the loss of larger ones
  scale coordinates CONFIG  sizes of activations at several widths, with muP and without
  finetune RUN CONFIG     train a checkpoint on labelled rows, and report its answers
  finetune fetch NAME     write a published data set for fine-tuning
  eval RUN                score a checkpoint on tasks, with a few-shot report
  eval fetch              download the files of benchmarks for eval
  eval report DIR DIR     combine several reports of eval into one page
  lm-eval                 EleutherAI's lm-eval, with pretrain's models in its registry
  verify CONFIG           run the same steps on several layouts and compare them
  compare RUN RUN         check whether two runs are the same
  replay RUN --step N     compute a step again: is its data bad, or a machine?
  export RUN              convert a checkpoint to Hugging Face's transformers
  import hf DIR           convert weights of transformers to a run with checkpoint 0
  import gguf FILE, import peft DIR
                          the same of llama.cpp's weights, or of low-rank updates
  translate RUN FILE      translate the lines of a file by beam search
  generate RUN            generate text: continue prompts, fill gaps, or write targets
  features RUN FILE       write hidden states of texts as vectors
  keys [PATTERN]          list the config keys with type and default
  completion SHELL        tab completion for bash, zsh or fish

  pretrain VERB --help    options of a verb, with examples
  pretrain --version      versions of pretrain and of its dependencies

A first run, on a book:
  pretrain data build data/text input=book.txt output=datasets/book
  pretrain train debug/gpt data.path=datasets/book run.dir=runs/book --nproc 4
  pretrain eval runs/book --tasks heldout --out reports/book

Exit status: 0 done, 1 failed, 2 bad usage or config, 75 stopped by a signal after saving (run it again to resume).
"""

import errno
import os
import re
import sys
import traceback
import warnings

from data_pipeline.errors import DataError, ExitStatus
from pretrain.commands.lean_imports import install
from pretrain.commands.verbs import MODULES, command, unknown
from pretrain.errors import ConfigError, RunError
from pretrain.process import streams
from pretrain.process.agreement import ERROR, STATUS, RendezvousError
from pretrain.process.memory import ran_out
from pretrain.process.peers import LostPeersError, lost_peers
from pretrain.process.ranks import check_launcher, global_rank, world_size

_ALONE = (
    "data",
    "compare",
    "launch",
    "runs",
    "plot",
    "profile",
    "keys",
    "completion",
    "plan",
    "rehearse",
    "lm-eval",
    "scale",
)
"""verbs of which a launcher starts no ranks, but the same command several times"""
_MISTAKES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES)
"""errors of a file that a person has named wrongly; others are a disk's"""
_LONGEST = 1800  # characters of a sentence
_PATIENCE_S = 120  # for other ranks to come, where this one cannot continue


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status. A user's mistake is one sentence on stderr, without a traceback."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(_versions())
        return 0
    verb, *rest = arguments
    if (said := unknown(verb)) is not None:
        print(f"pretrain: {said}", file=sys.stderr)
        return 2
    _quiet()
    if verb not in _ALONE:
        try:
            check_launcher()
        except ConfigError as error:
            _print(error)  # on every rank, as there may be no rank 0
            return ConfigError.exit_status
    try:
        return command(MODULES[verb])(rest)
    except (ConfigError, DataError, RunError) as error:
        return _refuse(error, alone=verb in _ALONE)
    except Exception as error:
        lost = lost_peers(error)
        if lost is not None:
            return _refuse(lost, alone=True)
        said = ran_out(error) or _file_message(error)
        if said is None:
            raise
        _print(f"rank {global_rank()}: {said}" if world_size() > 1 else said)  # others may have had enough
        return ConfigError.exit_status if getattr(error, "errno", None) in _MISTAKES else RunError.exit_status


def entry() -> None:
    """The console script."""
    install()
    streams.guard_streams()
    try:
        status = main()
    except SystemExit as leaving:  # argparse has shown its help
        status = leaving.code if isinstance(leaving.code, int) else 2
    except KeyboardInterrupt:
        if global_rank() == 0:
            print("pretrain: interrupted", file=sys.stderr)
        status = RunError.exit_status
    except BaseException:
        traceback.print_exc()
        status = RunError.exit_status
    _leave(status)


def _refuse(error: Exception, alone: bool) -> int:
    """Says what is wrong, once, and returns the exit status. Ranks that have met meet the same errors; one that has not
    yet tells the others, which wait for it."""
    status = RunError.exit_status if isinstance(error, RunError) else ConfigError.exit_status
    if world_size() > 1 and not alone:
        from pretrain.config.health import Health
        from pretrain.engine import rendezvous

        if not rendezvous.rendezvous_attempted():
            try:
                rendezvous.rendezvous(Health(rendezvous_timeout_s=_PATIENCE_S), {ERROR: str(error), STATUS: status})
            except RendezvousError:
                alone = True
            except (ConfigError, RunError) as verdict:
                error, status = verdict, verdict.exit_status
    if global_rank() == 0 or alone or isinstance(error, (RendezvousError, LostPeersError)):
        _print(error)
    return status


def _file_message(error: Exception) -> str | None:
    """Message for an error of a file that nothing else described; None: another error."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return None
    return f"{error.filename}: {error.strerror}"


def _print(error: Exception | str) -> None:
    """On one line, whatever names of files are in it, and however long they are."""
    said = re.sub(r"[\x00-\x1f\x7f]+", " ", str(error))
    if len(said) > _LONGEST:
        said = f"{said[: _LONGEST // 2]} [...] {said[-_LONGEST // 2 :]}"
    print("pretrain:", said, file=sys.stderr)


def _versions() -> str:
    import platform
    from importlib.metadata import version

    engines = ", ".join(f"{name} {version(name)}" for name in ("torch", "megatron-core", "deepspeed"))
    return f"pretrain {version('pretrain')} ({engines}, Python {platform.python_version()})"


def _quiet() -> None:
    """megatron-core warns at import of each accelerator library that is absent; none is needed here."""
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    # Of the device that this rank has set.
    warnings.filterwarnings("ignore", message=r"barrier\(\): using the device under current context")
    warnings.filterwarnings("ignore", message=r".*(_single|non-leaf|not a leaf).*")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _leave(status: int) -> None:
    """Ends the process. A gloo thread that outlives the interpreter aborts it, so the group is closed first and the
    interpreter's own teardown passed over."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_initialized():
            if status in (ExitStatus.DONE, ExitStatus.STOPPED):
                dist.barrier()
            dist.destroy_process_group()
    os._exit(streams.last_status(status))  # here, as a rank with a status of its own would keep the others waiting


if __name__ == "__main__":
    entry()
