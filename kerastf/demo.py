"""The demonstration behind `kerastf demo`: train, sample, save, load in a new process, draw."""

import math
import subprocess
import sys
from pathlib import Path

PROMPT = "three and four make"
LENGTH = 64


def run(out, steps):
    """Trains `gpt.nano` on the embedded corpus and shows what it learnt.

    Args:
        out: Folder for the model and the picture.
        steps: Training steps.

    Returns:
        The exit status.
    """
    import keras

    import kerastf
    from kerastf import data, plots
    from kerastf.text import CharacterTokenizer

    if steps < 1:
        raise ValueError(f"`steps` must be at least 1. Received: steps={steps}")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    text = data.corpus(200_000)
    cut = len(text) * 9 // 10
    tokenizer = CharacterTokenizer.from_text(text)
    tokens = tokenizer.encode(text)
    model = kerastf.create_model("gpt.nano", tokenizer=tokenizer, max_length=LENGTH, dropout=0.0)
    print(
        f"gpt.nano: {model.count_params():,} parameters, {tokenizer.vocab_size} characters, {len(text):,} to learn from"
    )
    print(f"\nBefore training, after {PROMPT!r}:\n{_indent(model.generate(PROMPT, max_length=60))}")

    epochs = min(6, steps)
    schedule = keras.optimizers.schedules.CosineDecay(4e-3, steps, warmup_target=None)
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=0.01, clipnorm=1.0))
    train = data.next_token(tokens[:cut], length=LENGTH, batch_size=32, steps=steps)
    valid = data.next_token(tokens[cut:], length=LENGTH, batch_size=32)
    print(f"\nTraining: {steps} steps. A guess at random would lose {math.log(tokenizer.vocab_size):.2f}.")
    bar = 1 if sys.stdout.isatty() else 2
    per_epoch = steps // epochs
    history = model.fit(
        train.repeat(), epochs=epochs, steps_per_epoch=per_epoch, validation_data=valid, verbose=bar, shuffle=False
    )
    losses = history.history["val_loss"]
    print(f"Validation loss: {' '.join(f'{v:.3f}' for v in losses)}")

    print(f"\nAfter training, after {PROMPT!r}:\n{_indent(model.generate(PROMPT, max_length=60))}")
    print("\nThe three most likely next characters:")
    for prompt in (PROMPT + " ", "the baker brings ", "is the mill red? yes, it is ", "count: two, three, "):
        best = ", ".join(f"{plots.visible(t)!r} {p:.1%}" for t, p in model.next_tokens(prompt))
        print(f"  {prompt!r:<34} {best}")

    path = out / "gpt.nano.keras"
    model.save(path)
    print(f"\nSaved {path}. A new process loads it and goes on:")
    command = [sys.executable, "-m", "kerastf", "generate", str(path), "--prompt", PROMPT, "--max-length", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    print(_indent(done.stdout.strip()))
    if done.stdout.strip() != model.generate(PROMPT, max_length=60).strip():
        print("The loaded model says something else than the one in memory.", file=sys.stderr)
        return 1

    sentence = "is the mill red? yes, it is red."
    weights = model.attention_weights([tokenizer.encode(sentence)])[-1][0]
    picture = out / "attention.png"
    plots.attention_map(weights, list(sentence), path=picture, title="Last layer of gpt.nano, head by head")
    print(f"\nDrew {picture}: where each character of {sentence!r} looks.")
    return 0


def _indent(text):
    return "\n".join(f"    {line}" for line in text.splitlines())
