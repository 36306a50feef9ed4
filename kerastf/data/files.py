"""Records from files: text, JSON lines, tables, TFRecords, and folders of them."""

import csv
import glob
import io
import json
from pathlib import Path

from kerastf import text
from kerastf.data import large
from kerastf.data.examples import read_examples
from kerastf.data.parallel import read_pairs
from kerastf.data.records import ROLES, Parts, find_keys, rename
from kerastf.data.spans import read_squad
from kerastf.errors import FileFormatError, InputError

ENDINGS = (".txt", ".jsonl", ".csv", ".tsv", ".tfrecord", ".tfrecords", ".json")
PARTS = {"train": "train", "training": "train", "valid": "valid", "validation": "valid", "val": "valid", "dev": "valid",
         "test": "test", "testing": "test"}  # fmt: skip


def ending(path):
    """The ending of a file that tells its format; `.gz` is no format of its own."""
    path = Path(path)
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()


def find_files(source):
    """The files that a path, a folder or a pattern means, by part."""
    path = Path(source)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and ending(p) in ENDINGS)
        if not files:
            raise FileFormatError(f"The folder has no file that ends in {', '.join(ENDINGS)}. Received: {str(path)!r}")
    elif path.is_file():
        files = [path]
    else:
        files = sorted(Path(p) for p in glob.glob(str(source), recursive=True) if Path(p).is_file())
        if not files:
            raise FileFormatError(
                "There is no such file, folder or pattern of files; a source may also begin with embedded: or tfds:. "
                f"Received: {str(source)!r}"
            )
    kinds = sorted({ending(p) for p in files})
    if len(kinds) > 1:
        raise FileFormatError(f"Files of one format are read together. Received: {', '.join(kinds)}")
    if kinds[0] not in ENDINGS:
        raise FileFormatError(f"A file ends in one of {', '.join(ENDINGS)}. Received: {str(files[0])!r}")
    found: dict = {"train": [], "valid": [], "test": []}
    for file in files:
        found[PARTS.get(file.name.split(".")[0].lower(), "train")].append(file)
    if not found["train"]:
        raise FileFormatError(f"None of the files is to train on. Received: {', '.join(p.name for p in files)}")
    return found


def read_text(path):
    """A whole text file as one record."""
    document = "\n".join(text.read_lines(path))
    if not document.strip():
        raise InputError(f"{Path(path).name} is empty.")
    yield {"text": document}, Path(path).name


def read_json_lines(path):
    """One record per line."""
    for number, line in enumerate(text.read_lines(path), 1):
        if not line.strip():
            continue
        where = f"{Path(path).name}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise FileFormatError(f"{where}: this is not JSON ({error}). Received: {text.short(line)}") from None
        if not isinstance(record, dict):
            raise FileFormatError(f"{where}: a record is an object with keys. Received: {text.short(line)}")
        yield record, where


def read_json(path):
    """The records of a file in SQuAD's format."""
    return ((record, f"{Path(path).name}, question {record['id']}") for record in read_squad(path))


def _split_commas(name, lines):
    """The rows of a `.csv` file, each with the number of its last line."""
    reader = csv.reader(io.StringIO("\n".join(lines)), strict=True)
    limit = csv.field_size_limit(2**31 - 1)  # of the whole process, so it is set back; a document may be long
    try:
        return iter([(reader.line_num, row) for row in reader if row])
    except csv.Error as error:
        raise FileFormatError(f"{name}, line {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(limit)


def read_table(path):
    """One record per line of a `.csv` or `.tsv` file, whose first line names the columns."""
    name, lines = Path(path).name, text.read_lines(path)
    if ending(path) == ".tsv":
        rows = ((number, line.split("\t")) for number, line in enumerate(lines, 1) if line)
    else:
        rows = _split_commas(name, lines)
    _, header = next(rows, (0, None))
    if header is None:
        raise InputError(f"{name} is empty.")
    twice = sorted({c for c in header if c.strip() and header.count(c) > 1})
    if twice:
        raise FileFormatError(f"{name}: a column has a name of its own. Received: twice {', '.join(twice)}")
    for number, row in rows:
        if len(row) != len(header):
            raise FileFormatError(
                f"{name}, line {number}: the first line names {len(header)} columns, {', '.join(header)}. "
                f"Received: {len(row)} columns"
            )
        yield dict(zip(header, row, strict=True)), f"{name}, line {number}"


READERS = {
    ".txt": read_text, ".jsonl": read_json_lines, ".csv": read_table, ".tsv": read_table, ".json": read_json,
    ".tfrecord": read_examples, ".tfrecords": read_examples,
}  # fmt: skip


def _has_header(path, task, keys):
    """Whether the first line of a table names columns of the task; pairs may also come without names."""
    first = next(text.read_lines(path), "").split("\t")
    wanted = set((keys or {}).values()) | set(ROLES[task])
    return bool(wanted & set(first))


def read_file(path, task, keys=None):
    """The records of a file under the names of a task."""
    kind = ending(path)
    if kind == ".txt" and ROLES[task] != ("text",):
        raise InputError(
            f"A text file has no {' or '.join(r for r in ROLES[task] if r != 'text')}: the task `{task}` reads .jsonl, "
            f".csv, .tsv or .tfrecord. Received: {Path(path).name!r}"
        )
    if kind == ".tsv" and task == "translation" and not _has_header(path, task, keys):
        found = [{"source": a, "target": b} for a, b in read_pairs(path)]
    else:
        found = rename(task, READERS[kind](path), keys)
    if not found:
        raise InputError(f"{Path(path).name} is empty.")
    return found


def _large(found, o, task):
    """The parts as texts that are read at random places, where they are for that and too large for memory."""
    kind = ending(found["train"][0])
    size = sum(p.stat().st_size for p in found["train"])
    packed = any(p.suffix == ".gz" for p in found["train"])
    if task not in ("language", "masked") or kind not in (".txt", ".jsonl") or packed or size <= o.stream_above:
        return None
    key = None
    if kind == ".jsonl":
        key = find_keys(task, next(read_json_lines(found["train"][0]))[0], o.keys)["text"]
    parts = {name: large.LargeText(files, key) if files else None for name, files in found.items()}
    if parts["valid"] is None and o.valid:
        parts["train"], parts["valid"] = parts["train"].hold_out(o.valid)
    return Parts(**parts)


def read(source, o, task):
    """The parts of a file, a folder or a pattern."""
    found = find_files(source)
    if parts := _large(found, o, task):
        return parts
    parts = {p: [r for f in files for r in read_file(f, task, o.keys)] if files else None for p, files in found.items()}
    return Parts(**parts)
