"""One call from a source to batches: `load`."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from kerastf import text
from kerastf.data import catalogue, embedded, files, memory, pictures
from kerastf.data.batching import require_number
from kerastf.data.feeds import Found
from kerastf.data.images import read_images
from kerastf.data.labels import class_numbers
from kerastf.data.large import Documents, LargeText
from kerastf.data.parallel import lengths
from kerastf.data.pretraining import require_rate
from kerastf.data.records import Images, Parts, hold_out, require_roles
from kerastf.data.tasks import TASKS, lines
from kerastf.errors import ConfigError, FileFormatError, InputError
from kerastf.registry import did_you_mean, nearest

COMMON = {"batch_size": 32, "seed": 0, "valid": 0.1, "static": False, "shuffle": True}
TEXT = {"tokenizer": None, "vocab_size": 8000, "special_tokens": None}
TRAINED_WITH = {"vocab_size", "special_tokens", "lowercase", "min_count", "learner", "max_characters"}
LEAST = {"masked": 3, "masked_pairs": 5, "classification": 3, "tagging": 3, "bidirectional": 3, "span": 4}
LEAST_NUMBERS = {
    "stride": 1, "window": 1, "buffer": 1, "multiple": 1, "shift": 0, "size": 1, "count": 1, "letters": 1,
    "channels": 1,
}  # fmt: skip
PLURALS = {"characters": "character", "bytes": "byte", "words": "word", "wordpieces": "wordpiece"}


def _origin(source, task):
    """What reads a source, and the options it knows."""
    if not isinstance(source, str | Path):
        return memory.read, {"keys": None}
    kind, _, name = str(source).partition(":")
    if kind == "embedded":
        found = embedded.find(name, task)
        return lambda _, o, task: found.read(o, task), found.options
    keys = {"keys": None}
    if kind == "tfds":
        more = {"image_size": None} if task == "images" else {"stream_above": 2**28, "sample": 2**22}
        return catalogue.read, {**keys, "data_dir": None, **more}
    if task == "images":
        return (pictures.read, {"image_size": None, "channels": 3}) if pictures.is_folder(source) else (_images, keys)
    return files.read, {**keys, "stream_above": 2**26, "sample": 2**22}


def _images(source, o, task):
    """The files that `read_images` knows: a .npz file, or a folder of idx files or of CIFAR-10."""
    path = Path(source)
    name = str(path)
    if path.is_dir():
        name = "cifar10" if any(path.rglob("*_batch*")) else "mnist"
    elif not path.exists():
        raise FileFormatError(f"There is no such file or folder of images. Received: {str(source)!r}")
    if files.ending(path) in (".tfrecord", ".tfrecords"):
        return pictures.read_examples_of(path, o)
    train, test = (Images(x, y.tolist()) for x, y in read_images(name, path))
    return Parts(train, test=test)


def _options(task, known, given):
    """All options of a call, defaults filled in; or one error with everything that is not known."""
    wrong = []
    for name in given:
        if name not in known:
            near = nearest(name, known)
            wrong.append(f"`{name}`" + (f" (did you mean `{near[0]}`?)" if near else ""))
    if wrong:
        raise ConfigError(
            f"The task `{task}` from this source has no option {', '.join(wrong)}. Options: {', '.join(known)}. "
            f"Received: {', '.join(sorted(given))}"
        )
    o = SimpleNamespace(**{**known, **given})
    require_number("batch_size", o.batch_size, 1)
    require_number("seed", o.seed, 0)
    if task == "translation":
        o.length = lengths(o.length, "length")
    elif "length" in known:
        require_number("length", o.length, LEAST.get(task, 1))
    for name, least in LEAST_NUMBERS.items():
        if name in known:
            require_number(name, getattr(o, name), least)
    if "mask_rate" in known:
        require_rate(o.mask_rate)
    require_roles(task, getattr(o, "keys", None))
    if o.valid is not None and not (isinstance(o.valid, int | float) and 0 <= o.valid < 1):
        raise InputError(f"`valid` is the share to hold out, in [0, 1). Received: valid={o.valid!r}")
    return o


def _texts(task, records):
    """What a tokenizer is trained on; two lists for translation."""
    if task == "translation":
        return [r["source"] for r in records], [r["target"] for r in records]
    if task == "span":
        return [t for r in records for t in (r["question"], r["context"])]
    if task == "tagging":
        return [" ".join(r["words"]) for r in records]
    return [t for r in records for t in ([r["text"]] if isinstance(r["text"], str) else r["text"])]


def _first(records, size):
    """The first texts of what comes one after the other, about so many characters together."""
    found = []
    for record in records:
        found.append(record["text"])
        size -= len(found[-1])
        if size <= 0:
            break
    return found


def make_tokenizer(given, texts, *, special, vocab_size):
    """A tokenizer as it is given, or trained on texts where it is told by name.

    Args:
        given: A tokenizer, its configuration, its name, or a dict of its name and options of its training.
        texts: What to train on.
        special: The special tokens of the task.
        vocab_size: The most tokens there may be.

    Returns:
        The tokenizer.
    """
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, dict) or not set(given) - {"name"} <= TRAINED_WITH:
        return text.from_config(given)
    options = {"vocab_size": vocab_size, "special_tokens": special, **given}
    name = PLURALS.get(options.pop("name", None), given.get("name"))
    if name in ("byte", "bpe") and "special_tokens" not in given and special == ("end", "unknown"):
        options["special_tokens"] = ("end",)  # nothing is unknown to them
    return text.train(name, texts, **options)


def _tokenizer(task, records, o):
    """The tokenizer of a task, or the pair of them."""
    special = TASKS[task].special if o.special_tokens is None else tuple(o.special_tokens)
    options = {"special": special, "vocab_size": o.vocab_size}
    given = TASKS[task].tokenizer if o.tokenizer is None else o.tokenizer
    if isinstance(records, list):
        texts = _texts(task, records)
    elif isinstance(records, LargeText | Documents):
        texts = records.sample(o.sample)
    else:
        texts = _first(records, o.sample)
    if task == "translation":
        both = given if isinstance(given, list | tuple) else (given, given)
        return tuple(make_tokenizer(g, side, **options) for g, side in zip(both, texts, strict=True))
    return make_tokenizer(given, texts, **options)


def _require_one_kind(task, part):
    """Raises the error of labels of which some are names and some numbers, while records have their places."""
    if task == "images":
        rows = ([v] for v in part.labels)
    else:
        rows = (r["tags"] if task == "tagging" else [r["label"]] for r in part)
    found = {}
    for number, row in enumerate(rows):
        for label in row:
            found.setdefault(isinstance(label, str), (label, number))
    if len(found) > 1:
        told = " and ".join(f"{label!r} in record {number}" for label, number in found.values())
        raise InputError(f"Labels are all names or all numbers; where they are both, give `classes`. Received: {told}")


def _classes(labels):
    """The names of the classes of labels: numbers in their order, other names in theirs."""
    labels = set(labels)
    if all(not isinstance(v, str) for v in labels):
        return int(max(labels)) + 1
    if all(v.isdecimal() for v in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def _label(task, parts, o):
    """The parts with labels as numbers, and the classes: their names, or how many there are."""
    if task == "images":
        labels = lambda part: list(part.labels)  # noqa: E731
    else:
        key = "tags" if task == "tagging" else "label"
        labels = lambda part: [v for r in part for v in (r[key] if key == "tags" else [r[key]])]  # noqa: E731
    classes = o.classes if o.classes is not None else parts.classes or _classes(labels(parts.train))
    if task == "images":
        numbered = [p and Images(p.images, np.array(class_numbers(p.labels, classes, "label"), "int32"))
                    for p in parts[:3]]  # fmt: skip
        parts = parts._replace(train=numbered[0], valid=numbered[1], test=numbered[2])
    else:
        for part in parts[:3]:
            class_numbers(labels(part or []), classes, "tag" if task == "tagging" else "label")
    return parts, classes


def _feed(task, name, part, o):
    if part is None:
        return None
    try:
        feed = TASKS[task].feed(part, o)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return feed


def by_line(records):
    """Records of a line each."""
    return records if records is None else [{"text": line} for line in lines(records)]


def check(source, *, task, **options):
    """Raises the error that `load` would raise, as far as it can be known without reading the source.

    Returns:
        What reads the source, and all options.
    """
    if task not in TASKS:
        raise ConfigError(
            f"There is no task `{task}`.{did_you_mean(nearest(str(task), TASKS))} Tasks: {', '.join(TASKS)}."
        )
    read, own = _origin(source, task)
    return read, _options(task, {**task_options(task), **own}, options)


def task_options(task):
    """The options of a task whatever the source, with their defaults."""
    return {**COMMON, **TASKS[task].options, **(TEXT if TASKS[task].tokenizer is not None else {})}


def load(source, *, task, **options):
    """A data set as batches, in one call.

    The batch of a step is a function of the seed and the step, so a training that was stopped goes on where it was, and
    several workers share each batch.

    Args:
        source: `"embedded:NAME"` (see `data.sources()`); `"tfds:NAME"`, of tensorflow-datasets; the path of a file
            (`.txt`, `.jsonl`, `.csv`, `.tsv`), of a folder of them or of images, or a pattern; `(x, y)` arrays or
            lists; or a list of records.
        task: `"language"`, `"sequences"`, `"masked"`, `"masked_pairs"`, `"classification"`, `"tagging"`,
            `"translation"`, `"span"`, `"images"`, `"bidirectional"` or `"word_vectors"`.
        **options: For all tasks `batch_size` (32), `seed` (0), `valid` (0.1; the share held out where the source has no
            such part), `shuffle`, `static` (one shape for all batches), and `keys`, which says what a record's keys
            mean. For text `tokenizer` (one of `kerastf.text`, its name, or a dict with options of its training),
            `vocab_size`, `special_tokens`, `length`. The page on data lists those of each task and source.

    Returns:
        A `Found` with `train`, `valid`, `test`, `tokenizer`, `options` and `classes`.

    Raises:
        ConfigError: An option is not one of the task or the source; nothing has been read by then.
        InputError: The data does not fit the task.
        FileFormatError: A file is missing or is not what it should be.

    Examples:
        >>> from kerastf import data
        >>> found = data.load("embedded:corpus", task="language", tokenizer="characters", length=32, batch_size=4)
        >>> found.train
        <Feed: batches of 4, 1406 a pass, 128 tokens each>
        >>> x, y = next(iter(found.train.dataset(start=1000)))
        >>> x.shape.as_list(), y.shape.as_list()
        ([4, 32], [4, 32])
    """
    read, o = check(source, task=task, **options)
    with_text = TASKS[task].tokenizer is not None
    parts = read(source, o, task)
    if task == "sequences":  # lines, before some of them are held out
        parts = parts._replace(train=by_line(parts.train), valid=by_line(parts.valid), test=by_line(parts.test))
    if "classes" in TASKS[task].options and o.classes is None and not parts.classes:
        _require_one_kind(task, parts.train)
    if isinstance(parts.train, list | Images):
        parts = hold_out(parts, o.valid, o.seed, task)
    found: dict = {}
    if "classes" in TASKS[task].options:
        parts, o.classes = _label(task, parts, o)
        found["num_classes"] = o.classes if isinstance(o.classes, int) else len(o.classes)
    if with_text:
        o.tokenizer = _tokenizer(task, parts.train, o)
        own = o.tokenizer if task == "translation" else (None, o.tokenizer)
        found.update(tokenizer=own[1], vocab_size=own[1].vocab_size)
        if task == "translation":
            found["source_tokenizer"] = own[0]
    else:
        height, width, channels = parts.train.images.shape[1:]
        found.update(image_size=[height, width], channels=channels)
    feeds = {name: _feed(task, name, getattr(parts, name), o) for name in ("train", "valid", "test")}
    names = getattr(o, "classes", None)
    return Found(
        **feeds, options=found, tokenizer=getattr(o, "tokenizer", None),
        classes=None if names is None or isinstance(names, int) else list(names),
    )  # fmt: skip
