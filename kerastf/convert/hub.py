"""Where folders come from: a path, or Hugging Face's hub through huggingface_hub, which is imported when it is used."""

import hashlib
import re
from pathlib import Path

from kerastf.errors import FileFormatError

# Configuration, weights and vocabularies. Weights in formats that can run code are not fetched.
FILES = ["config.json", "*.safetensors", "model.safetensors.index.json", "vocab.txt", "vocab.json", "merges.txt",
         "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "source.spm", "target.spm",
         "preprocessor_config.json"]  # fmt: skip
NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def fetch(source: "str | Path") -> Path:
    """The folder of a source.

    Args:
        source: A folder, or `"hf:NAME"` or `"hf:NAME@REVISION"` (a branch, a tag or a commit). What was fetched once is
            taken from huggingface_hub's cache. An interrupted download goes on where it was; the bytes are compared
            with the checksum that the hub gives. `HF_HUB_OFFLINE=1` looks into the cache only.

    Raises:
        FileFormatError: There is no such folder, or it cannot be fetched.
    """
    text = str(source)
    if not text.startswith("hf:"):
        path = Path(source)
        if not path.is_dir():
            raise FileFormatError(f"There is no folder {path}. From the hub: 'hf:NAME'. Received: {text!r}")
        return path
    name, _, revision = text[3:].partition("@")
    if not NAME.fullmatch(name) or (revision and not re.fullmatch(r"[\w./-]+", revision)):
        raise FileFormatError(f"A model of the hub is 'hf:NAME' or 'hf:NAME@REVISION'. Received: {text!r}")
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ImportError:
        raise FileFormatError(
            f"To fetch a model, install huggingface_hub: pip install 'kerastf[huggingface]'. Received: {text!r}"
        ) from None
    chosen = {"repo_id": name, "revision": revision or None, "allow_patterns": FILES}
    if (revision and re.fullmatch(r"[0-9a-f]{40}", revision)) or constants.HF_HUB_OFFLINE:
        try:  # a commit never changes, so the hub need not be asked
            folder = Path(huggingface_hub.snapshot_download(**chosen, local_files_only=True))
            if (folder / "config.json").exists():
                return folder
        except (OSError, ValueError):
            pass
    try:
        folder = Path(huggingface_hub.snapshot_download(**chosen))
    except (OSError, ValueError) as error:  # every error of huggingface_hub is one of these
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileFormatError(
            f"{text} is not in the cache and cannot be fetched: {reason} Give a folder instead, or try again online."
        ) from None
    for file in sorted(folder.rglob("*.safetensors")):
        verify(file)
    return folder


def verify(file: Path) -> None:
    """Compares a file of the cache with its checksum, which is its name there; once, then a mark beside it says so."""
    blob = file.resolve()
    if not re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return  # a small file, whose name is no checksum of its bytes alone
    mark = blob.with_name(blob.name + ".verified")
    if mark.exists():
        return
    with blob.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != blob.name:
        blob.unlink()
        file.unlink(missing_ok=True)
        raise FileFormatError(
            f"{file.name} came damaged: its checksum is not the hub's. It was removed; fetch it again."
        )
    mark.touch()
