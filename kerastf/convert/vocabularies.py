"""The files beside weights: vocabularies become tokenizers of ours and go back, and so does preprocessing."""

from pathlib import Path
from typing import Any

from kerastf import text
from kerastf.convert.tensors import read_json, write_json
from kerastf.errors import FileFormatError
from kerastf.text.base import ROLES, require_counted, short
from kerastf.text.bpe import read_numbers
from kerastf.text.pieces import FILE_SPECIAL

# How their files call the special tokens.
KEYS = {"eos_token": "end", "bos_token": "start", "pad_token": "pad", "unk_token": "unknown", "cls_token": "class",
        "sep_token": "separator", "mask_token": "mask"}  # fmt: skip
WANTED = {"gpt": ("end", "start", "pad"), "bert": ROLES, "transformer": ("end", "pad", "unknown")}


def read(folder: Path, converter: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a model from the files of a folder: `tokenizer`, `source_tokenizer`, `preprocessing`."""
    if converter.family == "vit":
        return _read_preprocessing(folder)
    settings = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name)
    special = {}
    for key, role in KEYS.items():
        token = settings.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and role in WANTED.get(converter.family, ROLES):
            special[role] = token
    if (folder / "source.spm").is_file():
        return _read_marian(folder, {"end": "</s>", "pad": "<pad>", "unknown": "<unk>", **special})
    if (folder / "vocab.txt").is_file():
        lowercase = settings.get("do_lower_case", True) is not False
        made: Any = text.WordPieceTokenizer.from_vocabulary(
            folder / "vocab.txt", lowercase=lowercase, strip_accents=settings.get("strip_accents"),
            chinese=settings.get("tokenize_chinese_chars", True) is not False,
        )  # fmt: skip
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        special = special or {"end": "<|endoftext|>", "start": "<|endoftext|>"}
        _require_as_written("tokenizer_config.json", settings)
        made = text.BytePairTokenizer.from_files(folder / "vocab.json", folder / "merges.txt", special)
    elif (folder / "tokenizer.json").is_file():
        made = _read_tokenizer_json(folder / "tokenizer.json", special)
    else:
        return {}
    return {"tokenizer": made}


def _read_marian(folder, special):
    numbers = read_numbers(folder / "vocab.json")
    source, target = (
        text.SentencePieceTokenizer.from_file(folder / f"{side}.spm", numbers, special) for side in ("source", "target")
    )
    return {"tokenizer": target, "source_tokenizer": source}


def _read_tokenizer_json(path, special):
    found = read_json(path)
    try:
        model, added = found["model"], found.get("added_tokens") or []
        numbers = {**model["vocab"], **{t["content"]: t["id"] for t in added}}
        if model["type"] == "WordPiece":
            _require(path.name, "pre_tokenizer", _steps(found, "pre_tokenizer"), ["BertPreTokenizer"])
            _require(path.name, "continuing_subword_prefix", model.get("continuing_subword_prefix", "##"), "##")
            habits = _bert_habits(path.name, _steps(found, "normalizer"))
            return text.WordPieceTokenizer.from_numbers(numbers, path.name, **habits)
        if model["type"] == "BPE" and (found.get("pre_tokenizer") or {}).get("type") == "ByteLevel":
            _require(path.name, "normalizer", _steps(found, "normalizer"), [])
            _require_as_written(path.name, found["pre_tokenizer"])
            merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
            require_counted(numbers, path.name)
            return text.BytePairTokenizer.from_numbers(
                numbers, merges, special or {"end": "<|endoftext|>", "start": "<|endoftext|>"}
            )
        kind = model["type"]
    except (KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path.name} is no tokenizer that can be read: {error!r}.") from None
    raise FileFormatError(
        f"{path.name} holds a {kind} tokenizer, which is not known here. Load with tokenizer=None or another one."
    )


def _steps(found, name):
    """The steps of a part of tokenizer.json, those within a sequence one by one; a step without options by its name."""
    part = found.get(name)
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part if len(part) > 1 else part["type"]]
    inner = part["normalizers" if name == "normalizer" else "pretokenizers"]
    return [step for p in inner for step in _steps({name: p}, name)]


def _bert_habits(source, steps):
    """What a normalizer of word pieces does: BERT's, composing before it, or nothing at all."""
    compose = steps[:1] == ["NFC"]
    rest = steps[1:] if compose else steps
    if not rest:
        return {"lowercase": False, "strip_accents": False, "compose": compose, "chinese": False, "controls": True}
    normal = rest[0] if isinstance(rest[0], dict) else {"type": rest[0]}
    if len(rest) > 1 or normal["type"] != "BertNormalizer":
        _require(source, "normalizer", steps, "BertNormalizer, NFC before it, or null")
    return {
        "lowercase": normal.get("lowercase", True), "strip_accents": normal.get("strip_accents"), "compose": compose,
        "chinese": normal.get("handle_chinese_chars", True), "controls": not normal.get("clean_text", True),
    }  # fmt: skip


def _require_as_written(source, settings):
    """Refuses byte pairs that do not read a text as it is written."""
    _require(source, "add_prefix_space", settings.get("add_prefix_space") or False, False)
    _require(source, "use_regex", settings.get("use_regex", True), True)


def _require(source, name, value, wanted):
    if value != wanted:
        raise FileFormatError(
            f"{source} has the {name} {short(value)}, which no tokenizer here has; it would have to be "
            f"{wanted}. Load with tokenizer=None or another one."
        )


def _read_preprocessing(folder):
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return {}
    found = read_json(path)
    prepared = {}
    if found.get("do_rescale", True):
        prepared["scale"] = found.get("rescale_factor", 1 / 255)
    if found.get("do_normalize", True):
        prepared |= {"mean": found.get("image_mean", 0.5), "std": found.get("image_std", 0.5)}
    return {"preprocessing": prepared} if prepared else {}


def write(folder: Path, model: Any) -> None:
    """Writes the tokenizer of a model, or its preprocessing, in the files that transformers read."""
    made = model.tokenizer
    if isinstance(made, text.WordPieceTokenizer):
        names = dict(zip(text.BERT, FILE_SPECIAL, strict=True))
        lines = {made.special_ids[role]: names.get(role, f"[{role.upper()}]") for role in made.special_tokens}
        lines |= dict(zip(made.ids, made.pieces, strict=True))
        _write_text(folder / "vocab.txt", "".join(lines[n] + "\n" for n in range(made.vocab_size)))
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": made.lowercase,
                    "strip_accents": made.strip_accents, "tokenize_chinese_chars": made.chinese}  # fmt: skip
        write_json(folder / "tokenizer_config.json", {**settings, **_named(made, names)})
    elif isinstance(made, text.BytePairTokenizer):
        numbers = {token: n for n, token in zip(made.ids, made.tokens, strict=True)}
        numbers |= {made.names[role]: n for role, n in made.special_ids.items()}
        write_json(folder / "vocab.json", dict(sorted(numbers.items(), key=lambda item: item[1])), indent=None)
        _write_text(folder / "merges.txt", "".join(line + "\n" for line in ("#version: 0.2", *made.merges)))
        kind = "RobertaTokenizer" if "mask" in made.special_ids else "GPT2Tokenizer"
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind, **_named(made, made.names)})
    elif isinstance(made, text.SentencePieceTokenizer):
        _write_marian(folder, model)
    elif getattr(model, "options", {}).get("preprocessing"):
        _write_preprocessing(folder, model.options)


def _write_marian(folder, model):
    import base64

    target, source = model.tokenizer, model.source_tokenizer
    numbers = {p: n for n, p in zip(target.ids, target.pieces, strict=True)}
    numbers |= {target.names[role]: n for role, n in target.special_ids.items()}
    write_json(folder / "vocab.json", dict(sorted(numbers.items(), key=lambda item: item[1])), indent=None)
    for name, made in (("source", source), ("target", target)):
        (folder / f"{name}.spm").write_bytes(base64.b64decode(made.model))
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False, **_named(target, target.names)}
    write_json(folder / "tokenizer_config.json", settings)


def _write_preprocessing(folder, options):
    prepared, size = options["preprocessing"], options["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    settings = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": height, "width": width},
        "do_rescale": "scale" in prepared, "rescale_factor": prepared.get("scale", 1.0),
        "do_normalize": "mean" in prepared or "std" in prepared,
        "image_mean": _list(prepared.get("mean", 0.0), options["channels"]),
        "image_std": _list(prepared.get("std", 1.0), options["channels"]),
    }  # fmt: skip
    write_json(folder / "preprocessor_config.json", settings)


def _list(value, count):
    return list(value) if isinstance(value, list | tuple) else [value] * count


def _named(made, names):
    """The special tokens as their settings call them."""
    return {key: names[role] for key, role in KEYS.items() if role in made.special_ids and role in names}


def _write_text(path, content):
    path.write_text(content, "utf-8", newline="\n")
