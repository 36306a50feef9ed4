"""Records of any source under the names that a task knows: text, label, source, target, ...

A source gives parts (train, valid, test) of records. A record is a dict; which of its keys is the text and which the
label is found by a small table, or told by `keys`.
"""

from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from kerastf import text
from kerastf.data.parallel import split
from kerastf.errors import ConfigError, InputError
from kerastf.registry import did_you_mean, nearest

# By task: what each role may be called, the best name first. A pair of texts is told by two keys.
NAMES = {
    "text": ("text", "sentence", "content", "document", "review", "article", "description"),
    "label": ("label", "class", "category", "topic", "intent", "sentiment"),
    "words": ("words", "tokens"),
    "tags": ("tags", "ner", "ner_tags", "pos", "upos", "pos_tags"),
    "source": ("source",),
    "target": ("target",),
    "question": ("question",),
    "context": ("context",),
    "answers": ("answers",),
    "image": ("image", "img"),
    "caption": ("caption", "captions"),
}
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"),
    ("text", "second"), ("text1", "text2"),
)  # fmt: skip
ROLES = {
    "language": ("text",),
    "masked": ("text",),
    "masked_pairs": ("text",),
    "bidirectional": ("text",),
    "sequences": ("text",),
    "word_vectors": ("text",),
    "classification": ("text", "label"),
    "tagging": ("words", "tags"),
    "translation": ("source", "target"),
    "span": ("question", "context", "answers"),
    "images": ("image", "label"),
}


class Parts(NamedTuple):
    """What a source holds: records by part, and the names of the classes where the source knows them."""

    train: Any
    valid: Any = None
    test: Any = None
    classes: list | None = None


class Images(NamedTuple):
    """Images as records: what gives images by their numbers, and as many labels."""

    images: Any
    labels: Any

    def take(self, numbers):
        """Some of the images."""
        take = getattr(self.images, "take", None) if not isinstance(self.images, np.ndarray) else None
        return Images(take(numbers) if take else self.images[numbers], [self.labels[i] for i in numbers])


def require_roles(task, given):
    """Raises the error of `keys` that names a role which the task does not have."""
    if given is not None and not isinstance(given, dict):
        raise ConfigError(f"`keys` is a dict of roles and the keys of records. Received: keys={text.short(given)}")
    for role in given or {}:
        if role not in ROLES[task]:
            raise ConfigError(
                f"The task `{task}` has no role `{role}`.{did_you_mean(nearest(str(role), ROLES[task]))} "
                f"Roles: {', '.join(ROLES[task])}. Received: keys={text.short(given)}"
            )


def find_keys(task, known, given=None):
    """Which key of a record has which role.

    Args:
        task: The task.
        known: The keys of a record.
        given: What the user says: role to key.

    Returns:
        Role to key; the text of a classification may be a pair of keys.
    """
    given, known = dict(given or {}), list(known)
    found, missing = {}, []
    for role in ROLES[task]:
        key = given.get(role)
        wanted = key if isinstance(key, list | tuple) else [key]
        if key is not None:
            missing += [(role, k) for k in wanted if k not in known]
            found[role] = tuple(key) if isinstance(key, list | tuple) else key
            continue
        pair = next((p for p in PAIRS if set(p) <= set(known)), None) if task == "classification" else None
        if role == "text" and pair:
            found[role] = pair
            continue
        found[role] = next((n for n in NAMES[role] if n in known), None)
        if found[role] is None:
            missing.append((role, role))
    if missing:
        raise InputError(
            f"The task `{task}` needs {', '.join(ROLES[task])}; {', '.join(str(k) for _, k in missing)} cannot be "
            f"found. Say which key is which with keys={{'{missing[0][0]}': ...}}. "
            f"Received: keys {', '.join(map(str, known))}"
        )
    return found


def _require_value(role, key, value):
    """Raises the error of a value that is missing, or is not what its role wants."""
    if role in ("text", "source", "target", "question", "context"):
        good, wanted = isinstance(value, str), "a text"
    elif role == "label":
        good, wanted = isinstance(value, str | Number | np.generic) and value == value, "a name or a number"
    else:
        good, wanted = value is not None, "a value"
    if not good:
        raise InputError(f"`{key}` must hold {wanted}. Received: {text.short(value)}")


def rename(task, records, given=None):
    """Records with the roles of a task as keys.

    Args:
        task: The task.
        records: Pairs of a record and where it stands, for errors.
        given: What the user says: role to key.

    Returns:
        A list of dicts.
    """
    mapping, made = None, []
    for record, where in records:
        try:
            if mapping is None:
                mapping = find_keys(task, record, given)
            for role, key in mapping.items():
                for one in key if isinstance(key, tuple) else (key,):
                    _require_value(role, one, record[one])
            made.append({r: tuple(record[k] for k in key) if isinstance(key, tuple) else record[key]
                         for r, key in mapping.items()})  # fmt: skip
        except KeyError as error:
            raise InputError(
                f"{where}: there is no key {error}. Received: keys {', '.join(map(str, record))}"
            ) from None
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    return made


def cut_text(document, fraction):
    """A text in two, the second with that share of it; at the end of a line where there is one near."""
    cut = len(document) - round(len(document) * fraction)
    line = document.rfind("\n", 0, cut) + 1
    cut = line if line and cut - line < len(document) * fraction / 2 else max(1, cut)
    return document[:cut], document[cut:]


def _share(fraction, count, least):
    """The share of so many that are held out: at least so many of them, and never all."""
    return max(0, min(max(least, round(fraction * count)), count - 1)) / max(1, count)


def hold_out(parts, fraction, seed, task):
    """Parts with records held out for `valid`, where the source has none and a fraction is asked for.

    One record is held out where the fraction is less; but none of few with classes, as another may not have its class.
    """
    if parts.valid is not None or not fraction:
        return parts
    train = parts.train
    if isinstance(train, Images):
        known, held = split(range(len(train.labels)), _share(fraction, len(train.labels), 0), seed)
        if not held:
            return parts
        return parts._replace(train=train.take(np.array(known, int)), valid=train.take(np.array(held, int)))
    if len(train) == 1 and isinstance(train[0].get("text"), str):
        known, held = cut_text(train[0]["text"], fraction)
        return parts._replace(train=[{**train[0], "text": known}], valid=[{**train[0], "text": held}])
    key = {"translation": "source", "span": "context"}.get(task)
    count = len({r[key] for r in train}) if key else len(train)
    share = _share(fraction, count, 0 if task in ("classification", "tagging") else 1)
    known, held = split(train, share, seed, key=key and (lambda r: r[key]))
    return parts._replace(train=known, valid=held or None)
