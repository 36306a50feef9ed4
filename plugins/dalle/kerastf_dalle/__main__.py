"""Trains both stages on coloured shapes, then draws captions that training never showed, judged by a classifier.

Command:  KERAS_BACKEND=jax python -m kerastf_dalle --out runs/dalle
Minutes:  1.8 to 2.7 on an H200, three at a time
Expected: at least 90 % of the drawings right in all attributes (98.6 % of 72 or more in six runs, four splits)
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np

import kerastf
from kerastf import text
from kerastf_dalle import judge, shapes


def arguments(given=None):
    parser = argparse.ArgumentParser(
        prog="python -m kerastf_dalle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="runs/dalle", help="folder for models, figures and the picture (runs/dalle)")
    parser.add_argument("--pictures", type=int, default=23040, help="training pictures (23040)")
    parser.add_argument("--batch", type=int, default=64, help="pictures per step (64)")
    parser.add_argument("--dvae-epochs", type=int, default=8, help="epochs of the dVAE (8)")
    parser.add_argument("--dvae-batch", type=int, default=32, help="pictures per step of the dVAE (32)")
    parser.add_argument("--dvae-rate", type=float, default=3e-3, help="highest learning rate of the dVAE (0.003)")
    parser.add_argument("--epochs", type=int, default=15, help="epochs of the Transformer (15)")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate of the Transformer (0.003)")
    parser.add_argument("--judge-epochs", type=int, default=4, help="epochs of the classifier (4)")
    parser.add_argument("--codes", type=int, default=128, help="size of the codebook (128)")
    parser.add_argument("--dvae-dim", type=int, default=48, help="channels of the dVAE (48)")
    parser.add_argument("--dim", type=int, default=96, help="width of the Transformer (96)")
    parser.add_argument("--layers", type=int, default=3, help="layers of the Transformer (3)")
    parser.add_argument("--position", default="dalle/learned_2d", help="position slot (dalle/learned_2d)")
    parser.add_argument("--sampler", default="greedy", help="sampler: greedy, random, top_k, top_p (greedy)")
    parser.add_argument("--temperature", type=float, help="temperature of a sampler that draws")
    parser.add_argument("--per-caption", type=int, default=4, help="drawings per unseen caption (4)")
    parser.add_argument("--jit", action=argparse.BooleanOptionalAction,
                        help="compile training with XLA; by default on all backends but TensorFlow")  # fmt: skip
    parser.add_argument("--split", type=int, default=0, help="seed of which captions are never shown (0)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all else (1)")
    options = parser.parse_args(given)
    if options.jit is None:  # XLA's convolutions are slow on processors, and TensorFlow has others
        options.jit = keras.backend.backend() != "tensorflow"
    return options


class Clock:
    """Wall-clock and processor seconds of each stage, printed as they end."""

    def __init__(self):
        self.stages = {}

    def stage(self, name, work):
        """Runs and times a stage; returns what it returned."""
        print(f"=== {name}", flush=True)
        wall, processor = time.monotonic(), time.process_time()
        result = work()
        spent = {"seconds": time.monotonic() - wall, "processor_seconds": time.process_time() - processor}
        self.stages[name] = {k: round(v, 1) for k, v in spent.items()}
        print(f"    {name}: {spent['seconds']:.0f} s, {spent['processor_seconds']:.0f} s of processors", flush=True)
        return result


def optimizer(rate, steps, decay=0.0):
    """AdamW whose learning rate rises for a twentieth of the steps and then falls to a twentieth of itself."""
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=rate, warmup_steps=max(1, steps // 20), alpha=0.05
    )
    return keras.optimizers.AdamW(schedule, weight_decay=decay, global_clipnorm=1.0)


def train_dvae(options, images):
    steps = options.dvae_epochs * -(-len(images) // options.dvae_batch)
    dvae = kerastf.create_model(
        "dalle/dvae.tiny", num_codes=options.codes, dim=options.dvae_dim, temperature=2.0, end_temperature=0.3,
        anneal_steps=steps * 2 // 3, anneal="exponential", kl_weight=1e-4, reconstruction="cross_entropy",
    )  # fmt: skip
    print(f"    {dvae.count_params():,} parameters, {steps} steps", flush=True)
    dvae.compile(optimizer(options.dvae_rate, steps), jit_compile=options.jit)
    dvae.fit(images, epochs=options.dvae_epochs, batch_size=options.dvae_batch, verbose=2)
    return dvae


def train_transformer(options, dvae, images, captions):
    tokenizer = text.train("word", captions, special_tokens=("pad",))
    model = kerastf.create_model(
        "dalle/dalle.tiny", dvae=dvae, tokenizer=tokenizer, dim=options.dim, num_layers=options.layers,
        position=options.position, text_length=max(len(tokenizer.encode(c)) for c in set(captions)),
    )  # fmt: skip
    inputs, targets = model.sequences(captions, images)
    steps = options.epochs * -(-len(inputs) // options.batch)
    trained = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    print(f"    {trained:,} trained parameters, {inputs.shape[1]} positions, {steps} steps", flush=True)
    model.compile(optimizer(options.rate, steps, decay=0.01), jit_compile=options.jit)
    model.fit(inputs, targets, epochs=options.epochs, batch_size=options.batch, verbose=2)
    return model


def train_judge(options, images, shown):
    model = judge.classifier()
    judge.train(
        model, images, shown, epochs=options.judge_epochs, batch_size=options.batch, jit_compile=options.jit
    )  # fmt: skip
    return model


def draw(options, model, scenes):
    """Drawings of scenes, each with a seed of its own round, and the scenes once per drawing."""
    sampler = {"name": options.sampler}
    if options.temperature is not None:
        sampler["temperature"] = options.temperature
    rounds = 1 if options.sampler == "greedy" else options.per_caption  # greedy ones would be all alike
    captions = [scene.caption for scene in scenes]
    images = [model.generate(captions, sampler=sampler, seed=options.seed + i) for i in range(rounds)]
    return np.concatenate(images), list(scenes) * rounds


def shares(right):
    """Of each attribute, the share that is right."""
    return {name: round(float(np.mean(values)), 4) for name, values in right.items()}


def grid(path, images, shown, right, columns=9):
    """Writes a picture of drawings under their captions; wrong ones have a red caption."""
    try:
        import matplotlib
    except ImportError:
        print("    no picture: pip install 'kerastf-dalle[plots]'")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = -(-len(images) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(1.7 * columns, 1.9 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, image, scene, good in zip(axes.flat, images, shown, right, strict=False):
        axis.imshow(image)
        words = scene.caption.split()
        axis.set_title(" ".join(words[:3]) + "\n" + " ".join(words[3:]), fontsize=8, color="black" if good else "red")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main(given=None):
    options = arguments(given)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    clock, figures = Clock(), {"backend": keras.backend.backend(), **vars(options)}
    seen, unseen = shapes.split(seed=options.split)
    images, shown = clock.stage("pictures", lambda: shapes.pictures(seen, options.pictures, seed=options.seed))
    fresh, fresh_shown = shapes.pictures(shapes.scenes(), 1080, seed=options.seed + 1)
    captions = [scene.caption for scene in shown]
    print(f"    {len(images):,} pictures of {len(seen)} captions; {len(unseen)} captions are never shown")

    dvae = clock.stage("dVAE", lambda: train_dvae(options, images))
    dvae.save(out / "dvae.keras")
    model = clock.stage("Transformer", lambda: train_transformer(options, dvae, images, captions))
    model.save(out / "dalle.keras")
    # The judge sees all captions: it tells what is drawn, also where that is new.
    both = shapes.pictures(shapes.scenes(), options.pictures, seed=options.seed + 2)
    classifier = clock.stage("classifier", lambda: train_judge(options, *both))
    drawn, drawn_shown = clock.stage("drawing", lambda: draw(options, model, unseen))

    copies = judge.judge(classifier, dvae.decode(dvae.encode(fresh)), fresh_shown)
    right = judge.judge(classifier, drawn, drawn_shown)
    familiar = judge.judge(classifier, *draw(options, model, seen[:: len(seen) // 72][:72]))
    figures |= {
        "stages": clock.stages, "real": shares(judge.judge(classifier, fresh, fresh_shown)), "copied": shares(copies),
        "unseen": shares(right), "seen": shares(familiar), "drawings": len(drawn),
    }  # fmt: skip
    order = np.argsort(right["all"][: len(unseen)], kind="stable")  # wrong ones first
    grid(out / "drawings.png", drawn[order], [drawn_shown[i] for i in order], right["all"][order])
    (out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    told = {"real": "real pictures", "copied": "real pictures through the dVAE",
            "seen": "drawings of captions seen in training", "unseen": "drawings of UNSEEN captions"}  # fmt: skip
    for name, what in told.items():
        print(f"{what}: " + ", ".join(f"{k} {v:.1%}" for k, v in figures[name].items()))
    total = sum(stage["seconds"] for stage in clock.stages.values())
    print(f"right in all attributes: {figures['unseen']['all']:.1%} of {len(drawn)} drawings; {total / 60:.1f} minutes")


if __name__ == "__main__":
    main()
