"""The commands about training: `train`, `ablate`, `evaluate` and `predict`."""

import json
import sys

from kerastf.cli_plugin import quiet


def add_commands(add):
    """Adds the commands to a parser.

    Args:
        add: Takes a name, what to run and a help text, and returns the command's own parser.
    """
    command = add(
        "train", _train, "Train what a recipe says. Killed or stopped, the same command goes on where it was.",
        epilog="Example: kerastf train gpt.nano --data embedded:corpus --set training.steps=500",
    )  # fmt: skip
    command.add_argument("recipe", help="a recipe (.toml), or a model such as gpt.nano")
    command.add_argument("--data", help="where the data are: embedded:NAME, tfds:NAME, a file or a folder")
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting that wins, any number")
    command.add_argument("--out", help="folder of the run (runs/ and the recipe's name)")
    command.add_argument("--fresh", action="store_true", help="throw away what is in the folder")
    command.add_argument("--dry-run", action="store_true", help="show recipe, parameters and memory; train nothing")
    command.add_argument("--devices", help="auto, cpu:4, gpu:2, tpu, workers, ... (auto)")
    command.add_argument("--workers", type=int, help="as many processes on this machine, watched and started again")

    command = add(
        "ablate", _ablate, "Train every combination of some choices, matched, and compare them. Goes on where it was.",
        epilog="Example: kerastf ablate recipes/small/gpt.toml --grid attention=multi_head,linear_attention/linear "
        "norm=layer,rms --seeds 3",
    )  # fmt: skip
    command.add_argument("recipe", help="a recipe (.toml), or a model such as gpt.nano")
    command.add_argument("--grid", nargs="+", required=True, metavar="A=B,C", help="a setting and the values to try")
    command.add_argument("--seeds", type=int, default=3, help="runs of each combination (3)")
    command.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting for all runs")
    command.add_argument("--jobs", type=int, help="runs at a time (one for every two processors)")
    command.add_argument("--out", help="folder (runs/ablation- and the recipe's name)")

    command = add("evaluate", _evaluate, "Measure the model of a run on its validation and test data, or on others.")
    _run_options(command)
    command.add_argument("--data", help="other data, all of which is read")

    command = add("predict", _predict, "Ask the model of a run about texts, words or images. Prints JSON lines.")
    _run_options(command)
    command.add_argument("inputs", nargs="*", help="texts, or paths of images; by default lines of the standard input")
    command.add_argument("-k", type=int, default=3, help="how many answers, likeliest first (3)")


def _run_options(command):
    command.add_argument("folder", help="the folder of a run")
    command.add_argument("--which", choices=("best", "last"), default="best", help="which model (best)")


def _train(options):
    if options.workers is not None:
        return _train_with_workers(options)
    quiet()
    from kerastf import training

    settings = list(options.set)
    if options.data:
        settings.insert(0, f"data.source={json.dumps(options.data)}")
    if options.devices:
        settings.append(f"training.devices={json.dumps(options.devices)}")
    if options.dry_run:
        print(training.dry_run(options.recipe, settings))
        return 0
    try:
        training.train(options.recipe, options.out, settings=settings, fresh=options.fresh)
    except training.TrainingStopped as error:
        print(f"kerastf: {error}", file=sys.stderr)
        return 1
    return 0


def _ablate(options):
    quiet()
    from pathlib import Path

    from kerastf import training

    out = options.out or Path("runs") / f"ablation-{Path(options.recipe).stem}"
    grid = training.parse_grid(options.grid)
    found = training.ablate(options.recipe, grid, out, seeds=options.seeds, settings=options.set, jobs=options.jobs)
    print(f"\n{found}")
    return 1 if any(row.failures for row in found.rows) else 0


def _train_with_workers(options):
    """The same command without `--workers`, in as many processes."""
    from kerastf.supervisor import supervise

    rest = list(options.arguments)
    place = next(i for i, part in enumerate(rest) if part.startswith("--workers"))
    del rest[place : place + (1 if "=" in rest[place] else 2)]
    return supervise([sys.executable, "-m", "kerastf", *rest], workers=options.workers)


def _evaluate(options):
    quiet()
    from kerastf import training

    for part, metrics in training.evaluate(options.folder, source=options.data, which=options.which).items():
        print(f"{part:<8}" + "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))


def _predict(options):
    quiet()
    from kerastf import training

    inputs = options.inputs or [line.rstrip("\n") for line in sys.stdin]
    for found in training.predict(options.folder, inputs, which=options.which, k=options.k):
        print(json.dumps(found, ensure_ascii=False))
