"""The command line: what users type. `kerastf --help` lists the commands."""

import argparse
import contextlib
import io
import json
import os
import re
import sys

from kerastf import __version__, cli_plugin, cli_training, plugins, registry
from kerastf.cli_plugin import quiet


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 well, 1 a check failed, 2 an error of the user's."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a sign is no reason to fail
    parser = _parser()
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments, argparse.Namespace(arguments=arguments))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        status = options.run(options) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of a pipe had enough; Python will write what it still holds into nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, LookupError, ImportError, OSError) as error:
        print(f"kerastf: {_plain(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"kerastf: {error if error.args else 'interrupted'}", file=sys.stderr)
        return 130


def _plain(error: Exception) -> str:
    """What an error says, without what Keras writes around it where a layer was being called."""
    inner = re.search(r"^Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m", str(error), re.DOTALL)
    return inner[1] if inner else str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kerastf", description="A zoo of Keras models in which any block can be swapped by name.",
        epilog="kerastf COMMAND --help explains a command.", allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"kerastf {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name, run, help, **kwargs):
        command = commands.add_parser(name, help=help, description=help, allow_abbrev=False, **kwargs)
        command.set_defaults(run=run)
        return command

    command = add("list", _list, "List models and blocks. Imports nothing.")
    command.add_argument("pattern", nargs="?", default="*", help="shell pattern for the id, such as 'gpt*'")
    command.add_argument("--kind", help=f"only this kind: {', '.join(plugins.KINDS)}")

    command = add("info", _info, "Describe a block or model: options, presets, parameters, FLOPs, origin, paper.")
    command.add_argument("id", help="such as gpt, gpt.nano or multi_head")
    command.add_argument("--kind", help="its kind, where several kinds have that name")
    command.add_argument(
        "--layers", nargs="?", type=int, const=1, metavar="DEPTH",
        help="instead, a table of what each layer of a model costs, down to a depth (1)",
    )  # fmt: skip
    command.add_argument("--length", type=int, help="with --layers: how long a sequence is (the model's max_length)")
    command.add_argument("--batch-size", type=int, default=1, help="with --layers: how many rows a batch has (1)")
    command.add_argument("--vocab-size", type=int, help="with --layers: how many tokens there are, where it is open")

    cli_plugin.add_commands(add)

    command = add("inspect", _inspect, "Show what a saved model is, without TensorFlow and without its plugins.")
    command.add_argument("file", help="a .keras file")
    command.add_argument("--weights", action="store_true", help="list every weight with its shape")

    command = add("check", _check, "Prove a block or model correct by the contract of its kind.")
    command.add_argument("id", help="such as multi_head, gpt or linear_attention/linear, or a saved model (.keras)")
    command.add_argument("--kind", help="its kind, where several kinds have that name")
    command.add_argument("--full", action="store_true", help="also XLA and a new process")

    command = add("diff", _diff, "Lay two models side by side: options, parameters, FLOPs, memory.")
    for name in ("first", "second"):
        command.add_argument(name, help="a model such as gpt.nano, or a saved one (.keras)")
    command.add_argument("--vocab-size", type=int, help="for models by name that need it")
    command.add_argument("--batch-size", type=int, default=1, help="rows of the batch (1)")
    command.add_argument("--length", type=int, help="length of its sequences (the model's own)")

    command = add(
        "matrix", _matrix, "Try every block in every model, and say why where one does not fit. Takes a while."
    )
    command.add_argument("--kind", help="only blocks of this kind (all that a model has a slot for)")
    command.add_argument("--model", help="only this model family")
    command.add_argument("--block", help="only the block of this id")
    command.add_argument(
        "--json", metavar="FILE", help="also write what came of it; what the file says of cells not tried now is kept"
    )

    cli_training.add_commands(add)

    command = add("generate", _generate, "Continue a prompt with a saved model.")
    command.add_argument("file", help="a .keras file that holds a tokenizer, or the folder of a run")
    command.add_argument("--prompt", required=True, help="the text to continue")
    command.add_argument("--max-length", type=int, help="length in tokens at which to stop, prompt included")
    command.add_argument("--sampler", default="greedy", help="greedy, random, top_k, top_p or a plugin's (greedy)")
    command.add_argument("--temperature", type=float, help="for samplers that draw: above 1 is bolder")
    command.add_argument("--seed", type=int, help="the same seed gives the same text")
    command.add_argument("--beams", type=int, default=1, help="search with this many beams instead (1)")
    command.add_argument("--plugins", default="all", help="plugins the file may use: all, none, or ns,ns (all)")

    command = add(
        "convert", _convert, "Make a .keras file of weights from elsewhere.",
        epilog="Examples: kerastf convert hf:gpt2 gpt2.keras; kerastf convert folder bert.keras --head features",
    )  # fmt: skip
    command.add_argument("source", help="a folder of Hugging Face, hf:NAME, hf:NAME@REVISION, or a file of word2vec")
    command.add_argument("file", help="the .keras file to write")
    command.add_argument("--head", help="another head than the source's; it begins anew")

    command = add("export", _export, "Write a saved model for another program.")
    command.add_argument("file", help="a .keras file")
    command.add_argument("--to", required=True, choices=("hf", "savedmodel", "onnx", "litert"), help="the format")
    command.add_argument("--out", help="the folder or file to write (beside the file)")
    command.add_argument("--type", help="for hf: the type of model there, such as roberta (the first that fits)")
    command.add_argument("--plugins", default="all", help="plugins the file may use: all, none, or ns,ns (all)")

    command = add("demo", _demo, "Train a small GPT on embedded text, sample, save, load, draw. About two minutes.")
    command.add_argument("--out", default="demo", help="folder for the model and the picture (demo)")
    command.add_argument("--steps", type=int, default=900, help="training steps (900)")
    return parser


def _list(options):
    if options.kind:
        registry.require_kind(options.kind)
    shown = 0
    for kind in plugins.KINDS:
        if options.kind not in (None, kind):
            continue
        models = kind == "model"
        ids = registry.list_models(options.pattern) if models else registry.list_blocks(options.pattern, kind)
        shown += len(ids)
        summaries = {e.id: e.manifest.get("summary", "") for e in registry.entries(kind)}
        if ids:
            print(f"{kind}")
        for id in ids:
            text = summaries.get(id, "") or _sizes(id)
            print(f"  {id:<28} {text}".rstrip())
    if not shown:
        where = f" of kind {options.kind}" if options.kind else ""
        hint = "Without a pattern, everything is listed."
        if options.pattern in plugins.KINDS and not options.kind:
            hint = f"Did you mean: kerastf list --kind {options.pattern}"
        print(f"Nothing{where} matches {options.pattern!r}. {hint}", file=sys.stderr)
    return 0 if shown else 2


def _sizes(id):
    family, _, preset = id.rpartition(".")
    options = registry.presets(registry.find("model", family)).get(preset, {}) if family else {}
    return ", ".join(f"{k}={v}" for k, v in options.items())


def _info(options):
    quiet()
    from kerastf import describe

    if options.layers is None:
        print(describe.info(options.id, options.kind))
        return
    from kerastf.counting import cost

    if options.layers < 1:
        raise ValueError(f"--layers takes a depth of at least 1. Received: {options.layers}")
    if describe.find(options.id, options.kind).kind != "model":
        raise ValueError(f"--layers is for models. Received: {options.id}")
    given = {} if options.vocab_size is None else {"vocab_size": options.vocab_size}
    found = cost(options.id, batch_size=options.batch_size, length=options.length, **given)
    print(f"{found.title()}\n\n{found.table(options.layers)}")


def _inspect(options):
    from kerastf.checkpoint import inspect

    saved = inspect(options.file)
    print(saved)
    if options.weights:
        print()
        for name, shape in saved.weights.items():
            print(f"  {name}  {shape}")


def _check(options):
    quiet()
    from kerastf import testing
    from kerastf.describe import find

    entry = None if options.id.endswith(".keras") else find(options.id, options.kind)
    level = "full" if options.full else "quick"
    model = _saved(options.id)
    try:
        if model:
            report = testing.verify(model, level=level)
        elif entry.kind == "model":
            report = testing.check_model(options.id, level=level)
        else:
            report = testing.check_block(entry.kind, entry.id, level=level)
    except testing.ContractError as error:
        print(error.report)
        for verdict in error.report.verdicts:
            if verdict.details:
                print(f"\n{verdict.name}:\n{verdict.details}")
        return 1
    print(report)


def _saved(text):
    """The model that a saved file holds; None for what is the name of no file."""
    if not text.endswith(".keras"):
        return None
    from kerastf.checkpoint import load_model

    return load_model(text, compile=False)


def _diff(options):
    quiet()
    from kerastf.experiments import diff

    models = [_saved(text) or text for text in (options.first, options.second)]
    given = {} if options.vocab_size is None else {"vocab_size": options.vocab_size}
    print(diff(*models, batch_size=options.batch_size, length=options.length, **given))


def _matrix(options):
    quiet()
    from kerastf import describe, testing
    from kerastf.checkpoint import atomic

    if options.kind:
        registry.require_kind(options.kind)
    model = options.model and registry.find("model", options.model).id
    block = options.block and describe.find(options.block, options.kind).id
    known = _known(options.json) if options.json else {}
    found = {}
    with atomic(options.json) if options.json else contextlib.nullcontext() as file:
        for cell, outcome in testing.matrix(options.kind, model=model, block=block):
            print(f"{'.'.join(cell[:2]):<28} {cell[2]:<26} {outcome}", flush=True)
            found[cell] = outcome
        if file:
            file.write_text(_merged({**known, **found}, testing.cells()), "utf-8")
    if not found:
        print("No model has a slot for such a block.", file=sys.stderr)
        return 2
    return 1 if any(" fails: " in outcome for outcome in found.values()) else 0


def _known(path):
    """By cell, what a file of the matrix says already."""
    from kerastf.errors import FileFormatError

    try:
        with open(path, encoding="utf-8") as file:
            return {(row["model"], row["slot"], row["block"]): row["outcome"] for row in json.load(file)}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError):
        raise FileFormatError(f"The file is there and holds no matrix. Received: --json {path}") from None


def _merged(known, cells):
    """The file of a matrix: one line per cell that there is, in their order."""
    from kerastf.slots import slot_kind

    rows = [
        {"model": model, "slot": slot, "kind": slot_kind(slot), "block": block, "outcome": known[model, slot, block]}
        for model, slot, block in cells
        if (model, slot, block) in known
    ]
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def _allowed(plugins):
    return plugins if plugins in ("all", "none") else plugins.split(",")


def _generate(options):
    quiet()
    from pathlib import Path

    from kerastf.checkpoint import load_model

    file = Path(options.file)
    if file.is_dir():
        from kerastf.training import RunFolder

        file = RunFolder(file).model_path()
    model = load_model(file, plugins=_allowed(options.plugins), compile=False)
    if model.writes != "tokens":
        raise ValueError(f"This model writes {model.writes}, and the command shows text: use model.generate in Python.")
    sampler = {"name": options.sampler}
    if options.temperature is not None:
        sampler["temperature"] = options.temperature
    plain = options.sampler if len(sampler) == 1 else sampler
    print(
        model.generate(
            options.prompt, max_length=options.max_length, sampler=plain, seed=options.seed, num_beams=options.beams
        )
    )


def _convert(options):
    quiet()
    from kerastf import convert

    if not options.file.endswith(".keras"):
        raise ValueError(f"A model is saved to a .keras file. Received: {options.file!r}")
    model = convert.load(options.source, **({"head": options.head} if options.head else {}))
    model.save(options.file)
    words = f", {model.tokenizer.vocab_size:,} tokens" if getattr(model, "tokenizer", None) else ""
    print(f"{options.file}: {model.registry_entry.id}, {model.count_params():,} parameters{words}")


def _export(options):
    quiet()
    from pathlib import Path

    from kerastf import convert
    from kerastf.checkpoint import load_model

    suffix = {"onnx": ".onnx", "litert": ".tflite"}.get(options.to, f"_{options.to}")
    path = options.out or str(Path(options.file).with_suffix("")) + suffix
    model = load_model(options.file, plugins=_allowed(options.plugins), compile=False)
    print(convert.export(model, path, options.to, type=options.type))


def _demo(options):
    quiet()
    from kerastf.demo import run

    return run(options.out, options.steps)
