"""Who may import whom, and what breaks it: docs/architecture.md's law, checked on the source text.

    breaches("pretrain/model_spec/flops.py", source, modules())     # sentences; [] if the file keeps the law

Imports count wherever they stand (at the top, in a function, under TYPE_CHECKING), by the module that they resolve to:
`from megatron.core import parallel_state` and `import megatron.core.parallel_state as mpu` are one and the same.
"""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from tests.helpers.sources import nodes

ROOT = Path(__file__).parents[2]
CLASSICS = " ".join(sorted(path.parent.name for path in ROOT.glob("pretrain/classics/*/__init__.py")))
PRODUCT = ("data_pipeline", "pretrain", "launch", "examples", "tools")

# Each package: its parts, the lowest first. A part imports itself and parts below it; those of one row not each other.
LAYERS: dict[str, tuple[str, ...]] = {
    "data_pipeline": (
        "errors",
        "config common writing",
        "executors reading tokenizers",
        "text dataset",
        "labelled order",
        "batch",
        "dedup lengths overlap recipes",
        "steps loader",
        "build heldout",
        "cli",
    ),
    "pretrain": (
        "errors",
        "run_dir",
        "config pages process",
        "run_length",
        "layout",
        "model_spec",
        "plan",
        "data random",
        "attention",
        "models",
        "objectives observe",
        "engine scaling",
        "checkpoint",
        "interop",
        "classics evaluate preflight",
        "finetune",
        "rehearse training verify",
        "commands",
        "__main__",
    ),
    "pretrain.engine": (
        "loss_scale",
        "base collective device digest",
        "group_exchanges memory rendezvous",
        "boxes groups",
        "optimizer",
        "zero",
        "megatron",
        "make",
    ),
    "pretrain.engine.zero": (
        "base deepspeed_setup gradient_norm optimizer_state",
        "frozen",
        "megatron deepspeed",
        "partitioned_init stage12 stage3",
        "select",
    ),
    "pretrain.engine.megatron": (
        "built_model micro_batches needed_lengths ranges state runner step_part united",
        "padding",
        "logits",
        (
            "decoding generator hidden_states label_scores layer_norms layer_outputs memory_part miscomputed "
            "on_demand qk_clip router_terms step_cutter step_work teacher"
        ),
        "forward_engine replay",
        "step_parts",
        "engine",
    ),
    "pretrain.interop": ("hf", "gguf peft"),
    "pretrain.interop.hf": (
        "fields fits fp8_blocks hf_answers hf_tokenizer hostile hub links new_tokens repack rope",
        "family released",
        "families heads mtp weights",
        "registry",
        "folder gate",
        "by_layer chat streaming",
        "source_model",
        "card conventions",
        "tokenizer",
        "export vocabulary",
        "tokenizer_gate",
        "imports",
        "grow",
    ),
    "pretrain.interop.hf.families": (
        "bart bert bloom gpt2 llama_kin t5",
        "bigbird distilbert marian mixtures roberta",
        "deepseek longformer xlm_roberta",
    ),
    "pretrain.interop.peft": ("config", "weights", "base gate", "export unpack"),
    "pretrain.interop.gguf": ("tokenizer unpack", "export"),
    "pretrain.objectives": (
        "divergence label_logits terms",
        "base",
        "matched_layers task_heads tokens",
        "distillation further_tokens next_sentence replaced_tokens task_distillation with_language_model",
        "registry",
    ),
    "pretrain.evaluate": (
        (
            "attention_picture average_draws bleu feature_files feature_request gleu heldout opening outcomes progress "
            "ranks rouge run_data"
        ),
        "decoding",
        "scorers settings tasks translate",
        "features fetch generate harness protocol",
        "lm_eval_model measures",
        "score_draw",
        "evaluator",
        "live_tasks overlap report",
        "table",
        "publish",
        "checkpoints",
    ),
    "pretrain.evaluate.decoding": ("base stream", "beam choice prompts", "chat fill sampling", "decode"),
    "pretrain.evaluate.scorers": ("base", "batches", "causal pseudo targets", "backward", "make"),
    "pretrain.evaluate.tasks": (
        "filters jsonl metric_names normalization published",
        "base task_file templates",
        "arbitrary_labels file_task last_word openai",
        "arithmetic scrambling",
        "registry",
    ),
    "pretrain.evaluate.measures": ("base", "group_metrics perplexity target text_metrics", "choice text", "registry"),
    "pretrain.evaluate.report": (
        "charts facts gpt3 in_training metrics samples",
        "page panels",
        "curves sections",
        "combine write",
    ),
    "pretrain.finetune": (
        "answers metric_context sets",
        "label_metrics text_metrics",
        "metrics",
        "fetch text_figures",
        "judge",
        "texts",
        "sources",
        "report spread",
        "eval_rows",
    ),
    "pretrain.finetune.sets": ("readers row_filters", "published_set", "registry"),
    "pretrain.training": (
        "attention_kernel best changes device_notes skips tried_versions",
        "notes",
        "build",
        "session",
        "bad_steps",
        "garbage",
        "resume",
        "loop",
        "finetuned replay",
    ),
    "data_pipeline.recipes": (
        "base bins pieces template_environment windows",
        "objective",
        "backward best_fit chat_template class_labels document_windows input_format masking targets",
        "conversation_encoder conversations labelled",
        "unrendered",
        "conversation_rows",
        "causal control corruption instructions pairs permuted segments spans tagging choice text_labels text_to_text",
        "characters denoising gap_sentences masked span_corruption t5_study tlm",
        "by_source replaced_tokens",
        "registry",
    ),
    "pretrain.rehearse": (
        "caching_allocator cuda_kernels exchange flops kinds modules planned traffic unmeasured work",
        "deadlock device_memory loading",
        "agreement rank_rehearsal recorder",
        "patches",
        "rank",
        "against_plan progress run",
        "report",
    ),
    "pretrain.rehearse.patches": ("attributes", "attention cuda tensor_device tensor_values", "deepspeed", "install"),
    "pretrain.scaling": (
        "points size",
        "forms isoflop shape rules runs",
        "coordinates fit ladder",
        "backtest best_size diverged ladder_files",
        "law",
        "predict",
        "predicted_run predictions report",
    ),
    "pretrain.commands": (
        "arguments checkpoint_argument lean_imports local_ranks node_fields output verbs",
        "conversation dispatch",
        (
            "launch_rehearsal nodes_options site_options decoding eval_fetch eval_report finetune_fetch "
            "scale_coordinates scale_fit scale_ladder scale_predict plan_attention plan_calibrate plan_data"
        ),
        (
            "train eval finetune verify compare replay export import_ translate generate features lm_eval keys plan "
            "rehearse scale runs plot profile"
        ),
        "data_build data_inspect data_report data_ledger data_trace data_units",
        (
            "launch_build launch_slurm launch_local launch_kubernetes launch_skypilot launch_status launch_logs "
            "launch_cancel"
        ),
        "data launch",
        "completion_scripts",
        "completion",
    ),
    "pretrain.classics": (CLASSICS,),  # none knows another
    "launch": (
        "run_progress tasks snapshot checks gpus presence guard",
        "attempts",
        "policy",
        "supervisor",
        "local_placement slurm",
        "nodes",
        "manifest",
        "kubernetes skypilot",
        "status array_status cancel",
    ),
    "examples": (
        "enwik8 label_texts news text_tasks",
        "abstracts topics",
        "corpora demo demo_finetune arithmetic ladder reversal",
        "languages",
    ),
    "launch.nodes": ("starts", "ranks supervise"),
    "launch.slurm": ("site client ray_step", "script allocation site_gpu", "jobs queueing supervise", "build_job"),
}

# What others may know of a package. Parts that are not named here are its own affair.
SEAMS: dict[str, tuple[str, ...]] = {
    "pretrain.engine": ("base", "collective", "make", "memory", "device", "rendezvous"),
    "pretrain.engine.zero": ("base", "gradient_norm", "select"),
    "pretrain.engine.megatron": ("engine",),
    "pretrain.rehearse": ("progress", "rank", "run", "report"),
    "pretrain.verify": ("run", "jobs", "report", "compare", "compare_report", "coordinates"),
    "pretrain.commands": ("lean_imports", "verbs"),
    "pretrain.training": ("finetuned", "loop", "replay", "session"),
    "pretrain.evaluate": (
        *("bleu", "checkpoints", "decoding", "feature_request", "features", "fetch", "generate", "heldout"),
        *("live_tasks", "lm_eval_model", "opening", "report", "rouge", "scorers", "settings", "tasks", "translate"),
    ),
    "pretrain.interop.hf": (
        *("export", "grow", "hub", "imports", "repack"),
        *("families", "family", "fits", "links"),  # of which a family's conversion is made
    ),
    "pretrain.interop.hf.families": ("bart", "bert", "gpt2", "roberta"),  # others' layers and heads are like theirs
    "pretrain.interop.peft": ("export", "unpack"),
    "pretrain.interop.gguf": ("export", "unpack"),
    "pretrain.objectives": ("base", "registry", "terms", "tokens"),
    "pretrain.preflight": ("check", "step_timing"),
    "pretrain.classics": (),  # found by what they declare (pretrain/config/classics.py)
    "data_pipeline.build": ("build", "config", "cost", "inputs"),
    "data_pipeline.tokenizers": (
        "base",
        "byte",
        "changed_words",
        "characters",
        "load",
        "named_tokens",
        "recorded",
        "released",
        "sentencepiece_json",
        "specials",
    ),
    "data_pipeline.steps": ("base", "registry"),
}

# Who besides knows all of a package.
OPEN_TO = {
    "pretrain.interop.hf": ("pretrain.interop.gguf", "pretrain.interop.peft"),  # which are made of its folders
    "pretrain.interop.hf.families": ("pretrain.interop.hf.registry",),
}

LAUNCH_KNOWS = (
    *("pretrain.config", "pretrain.layout", "pretrain.run_length", "pretrain.plan", "pretrain.process"),
    *("pretrain.errors", "pretrain.run_dir"),
)
# What these may know of `pretrain`.
KNOW = {
    "launch": LAUNCH_KNOWS,
    "examples": (*LAUNCH_KNOWS, "pretrain.evaluate.rouge"),  # to score what costs nothing as models are scored
    "tools": LAUNCH_KNOWS,
}

TORCH = ("torch", "megatron", "deepspeed", "transformers")
# Where alone a library, or a part of one, may be imported.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "megatron.core.parallel_state": ("pretrain/engine/groups.py",),
    "megatron.core.mpu": (),  # its other name
    "megatron": (
        *("pretrain/engine", "pretrain/models", "pretrain/objectives", "pretrain/attention", "pretrain/random"),
        "pretrain/classics/*/*modules.py",
    ),
    "deepspeed": ("pretrain/engine/zero", "pretrain/rehearse/patches"),
    "transformers": ("pretrain/interop", "pretrain/classics/*/hf.py"),
    "huggingface_hub": ("pretrain/interop/hf",),
    "peft": ("pretrain/interop/peft/gate.py",),
    "gguf": ("pretrain/interop/gguf",),
    "mlflow": ("pretrain/observe",),
    "tensorboard": ("pretrain/observe",),
    "wandb": ("pretrain/observe",),
    "triton": ("pretrain/models/triton",),
    "lm_eval": ("pretrain/evaluate/harness.py", "pretrain/evaluate/lm_eval_model.py"),
    "datasets": ("pretrain/evaluate/fetch.py",),
    "sacrebleu": ("pretrain/evaluate",),
    "seqeval": ("pretrain/finetune",),
    "rouge_score": ("pretrain/evaluate",),
    "ray": ("data_pipeline/executors/ray_cluster.py",),
    "webdataset": ("data_pipeline/dataset",),
    "sentencepiece": ("data_pipeline/tokenizers",),
    # by name it could import anything
    "importlib.import_module": (
        "pretrain/commands/verbs.py",
        "pretrain/commands/lean_imports.py",
        "pretrain/config/classics.py",
    ),
    "importlib.metadata.entry_points": ("data_pipeline/common/plugins.py",),
    "runpy": (),
    "pytest": ("tools/plant_faults",),
    "coverage": ("tools/plant_faults",),
    "tests": ("tools/plant_faults",),  # which it runs
}
# Who never imports torch or what stands on it.
WITHOUT_TORCH = (
    *("data_pipeline", "launch", "examples", "tools"),
    *("pretrain/config", "pretrain/run_length", "pretrain/layout", "pretrain/model_spec", "pretrain/plan"),
    *("pretrain/data", "pretrain/process", "pretrain/run_dir", "pretrain/scaling"),
    *(f"pretrain/classics/*/{name}.py" for name in ("__init__", "family", "hf_class", "key", "part", "specs", "work")),
)


def modules() -> dict[str, Path]:
    """Every module of the product, with its path from the root."""
    found = {}
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            found[".".join(relative.with_suffix("").parts).removesuffix(".__init__")] = relative
    return found


def imports(source: str, known: dict[str, Path]) -> Iterator[str]:
    """The module, or the name in one, of each import: as long as what it resolves to. Names that are called to import
    others (`importlib.import_module`, `__import__`, `exec`, `eval`) count as imports of themselves."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known or not str(node.module).startswith(PRODUCT) else str(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("__import__", "exec", "eval"):
                yield node.func.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            whole = f"{node.value.id}.{node.attr}"
            if whole in ("importlib.import_module", "importlib.__import__", "builtins.__import__"):
                yield "importlib.import_module"


def breaches(path: str, source: str, known: dict[str, Path]) -> list[str]:
    """What of the law a file of the product breaks, in sentences."""
    own = ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
    found = []
    for name in imports(source, known):
        found += [f"{path} imports {name}: {why}" for why in _of_libraries(path, name)]
        if name.split(".")[0] in PRODUCT:
            found += [f"{path} imports {name}: {why}" for why in _of_ours(own, name, known)]
    return sorted(set(found))


def _of_libraries(path: str, name: str) -> Iterator[str]:
    if name in ("a relative import", "__import__", "exec", "eval"):
        yield "a reader can't see what it imports"
    for library, places in ONLY_IN.items():
        if _within(name, library) and not any(_under(path, place) for place in places):
            yield f"{library} is for {', '.join(places) or 'nobody here'}"
    if any(_within(name, library) for library in TORCH) and any(_under(path, place) for place in WITHOUT_TORCH):
        yield "this part does without torch"


def _of_ours(own: str, name: str, known: dict[str, Path]) -> Iterator[str]:
    package, target = own.split(".")[0], name.split(".")[0]
    if name in PRODUCT:
        yield "name the module, not the package"
        return
    if name not in known and not any(module.startswith(f"{name}.") for module in known):
        yield "there is no such module"
    if package == "data_pipeline" and target != package:
        yield "data_pipeline stands alone"
    if package == "pretrain" and target == "launch" and not _within(own, "pretrain.commands"):
        yield "of pretrain only commands know launch"
    if target in ("examples", "tools") and package != target:
        yield "nothing of the product needs an example or a tool"
    if package in KNOW and target == "pretrain" and not any(_within(name, part) for part in KNOW[package]):
        yield f"{package} knows {', '.join(KNOW[package])}"
    for parent, rows in LAYERS.items():
        mine, other = _part(own, parent), _part(name, parent)
        if mine and other and mine != other and _level(rows, other) >= _level(rows, mine):
            yield f"in {parent}, {other} is not below {mine}"
    for seam, parts in SEAMS.items():
        part = _part(name, seam)
        inside = any(_within(own, one) for one in (seam, *OPEN_TO.get(seam, ())))
        if part and not inside and part not in parts:
            yield f"outside {seam} only {', '.join(parts) or 'nothing'} of it is known"


def unlisted(known: dict[str, Path]) -> list[str]:
    """Parts of a package with layers that are in none of them, and the other way round."""
    found = []
    for parent, rows in LAYERS.items():
        listed = [part for row in rows for part in row.split()]
        there = {part for module in known if (part := _part(module, parent))}
        found += [f"{parent}.{part}" for part in sorted(there.symmetric_difference(listed))]
        found += [f"{parent}.{part} twice" for part in sorted({part for part in listed if listed.count(part) > 1})]
    return found


def cycles(known: dict[str, Path]) -> list[str]:
    """Modules that import each other in a circle."""
    graph = {
        module: {name for name in imports((ROOT / path).read_text(encoding="utf-8"), known) if name in known}
        for module, path in known.items()
    }
    while True:  # what imports nothing, or is imported by nothing, is in no circle
        imported = {name for module, below in graph.items() for name in below - {module}}
        kept = {module for module, below in graph.items() if below & graph.keys() - {module} and module in imported}
        if len(kept) == len(graph):
            return sorted(graph)
        graph = {module: below for module, below in graph.items() if module in kept}


def _part(module: str, parent: str) -> str | None:
    """The part of `parent` that `module` is or is in."""
    return module.removeprefix(f"{parent}.").split(".")[0] if module.startswith(f"{parent}.") else None


def _level(rows: tuple[str, ...], part: str) -> int:
    return next((level for level, row in enumerate(rows) if part in row.split()), -1)


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _under(path: str, place: str) -> bool:
    return fnmatch(path, place) or path.startswith(f"{place}/")
