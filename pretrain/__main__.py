"""`pretrain VERB ...` (or `python -m pretrain VERB ...`). A verb's modules are imported when it is called.

    pretrain data build configs/data/text.yaml input=book.txt output=datasets/book
    pretrain data ledger runs/debug-gpt
    pretrain data trace runs/debug-gpt --step 17 --text
    pretrain train configs/debug/gpt.yaml data.path=datasets/book --nproc 4
    pretrain eval runs/debug-gpt --tasks last_word,arithmetic_2da --shots 0,1,8 --out reports/debug-gpt
    pretrain verify configs/debug/gpt.yaml --layouts tp2,pp2,tp2pp2dp2+sp+vp2
    pretrain compare runs/debug-gpt runs/debug-gpt-again
    pretrain export runs/debug-gpt --to hf exported/debug-gpt
    pretrain import hf exported/debug-gpt --out runs/imported
    pretrain translate runs/debug-transformer test.jsonl --beam 4
    pretrain generate runs/debug-gpt --prompt "The" --temperature 0.8 --top-p 0.9

Exit status: 0 done, 1 failed, 2 bad usage or config, 75 stopped by a signal after saving (start again to go on).
"""

import os
import re
import sys
import traceback
import warnings
from importlib import import_module

from data_pipeline.errors import DataError
from pretrain.errors import ConfigError, RunError
from pretrain.process.agreement import ERROR, STATUS, NotMetError
from pretrain.process.memory import ran_out
from pretrain.process.ranks import check_launcher, global_rank, world_size

_MODULES = {
    "data": "data",
    "train": "train",
    "eval": "eval",
    "verify": "verify",
    "compare": "compare",
    "export": "export",
    "import": "import_",
    "translate": "translate",
    "generate": "generate",
}
"""verb -> file in `commands/`"""
_ALONE = ("data", "compare")  # of which a launcher starts no ranks, but the same command several times
_PATIENCE_S = 120  # for other ranks to come, where this one can't go on


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit status. A user's mistake is one sentence on stderr, without a traceback."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    verb, *rest = arguments
    if verb not in _MODULES:
        print(f"pretrain: unknown command '{verb}': known are {', '.join(_MODULES)}", file=sys.stderr)
        return 2
    _quiet()
    if verb not in _ALONE:
        try:
            check_launcher()
        except ConfigError as error:
            _print(error)  # on every rank, as there may be no rank 0
            return ConfigError.exit_status
    try:
        command = import_module(f"pretrain.commands.{_MODULES[verb]}")  # alone: most need seconds to import
        return int(command.main(rest))
    except (ConfigError, DataError, RunError) as error:
        return _refuse(error, alone=verb in _ALONE)
    except Exception as error:
        said = ran_out(error) or _of_file(error)
        if said is None:
            raise
        _print(f"rank {global_rank()}: {said}" if world_size() > 1 else said)  # others may have had enough
        return RunError.exit_status


def entry() -> None:
    """The console script."""
    try:
        status = main()
    except SystemExit as leaving:  # argparse has said what it wanted to say
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
        from pretrain.engine import device

        if not device.has_met():
            try:
                device.meet(_PATIENCE_S, {ERROR: str(error), STATUS: status})
            except NotMetError:
                alone = True
            except (ConfigError, RunError) as verdict:
                error, status = verdict, verdict.exit_status
    if global_rank() == 0 or alone or isinstance(error, NotMetError):
        _print(error)
    return status


def _of_file(error: Exception) -> str | None:
    """What is wrong with a file, of which no one has had more to say."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return None
    return f"{error.filename}: {error.strerror}"


def _print(error: Exception | str) -> None:
    """On one line, whatever names of files are in it."""
    print("pretrain:", re.sub(r"[\x00-\x1f\x7f]+", " ", str(error)), file=sys.stderr)


def _quiet() -> None:
    """megatron-core warns at import of each accelerator library that is absent; none is needed here."""
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    warnings.filterwarnings("ignore", message=r".*(_single|non-leaf|not a leaf).*")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _leave(status: int) -> None:
    """Ends the process. A gloo thread that outlives the interpreter aborts it, so the group is closed first and the
    interpreter's own teardown passed over."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_initialized():
            if status in (0, 75):
                dist.barrier()
            dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    entry()
