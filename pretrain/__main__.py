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
import sys
import traceback
import warnings
from importlib import import_module

from data_pipeline.errors import DataError
from pretrain.errors import ConfigError, RunError
from pretrain.process.ranks import adopt_srun, global_rank

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
    try:
        adopt_srun()
        command = import_module(f"pretrain.commands.{_MODULES[verb]}")  # alone: most need seconds to import
        return int(command.main(rest))
    except (ConfigError, DataError) as error:
        if global_rank() == 0:  # every rank meets the same mistake
            print(f"pretrain: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        if global_rank() == 0:
            print(f"pretrain: {error}", file=sys.stderr)
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
