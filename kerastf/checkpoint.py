"""Saved models: load them safely, look into them without TensorFlow or their plugins, write them atomically."""

import contextlib
import io
import json
import os
import secrets
import shutil
import stat
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from kerastf import building, errors, garbage, registry, trust
from kerastf.errors import ConfigError, FileFormatError, PluginError, UnknownNameError
from kerastf.plugins import only
from kerastf.schema import short

MEMBERS = ("metadata.json", "config.json", "model.weights.h5")
LARGEST_TEXT = 64 * 2**20  # a configuration of more bytes than this is not one of ours
DEEPEST = 100  # groups of weights within groups: Keras makes two per layer within a layer


@dataclass
class Saved:
    """What a file says of itself.

    Attributes:
        path: The file.
        model: Id of the family.
        options: The options and slots it was built with.
        provenance: By id: distribution and version of each block, as the file claims.
        keras_version: What it was written with.
        date: When.
        weights: By path: the shape of each weight.
        compiled: Whether optimizer and loss are in the file.
    """

    path: Path
    model: str
    options: dict[str, Any]
    provenance: dict[str, dict[str, str]]
    keras_version: str
    date: str
    compiled: bool
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        total = 0
        for shape in self.weights.values():
            size = 1
            for n in shape:
                size *= n
            total += size
        return total

    def __str__(self) -> str:
        lines = [f"{self.path.name}: {self.model}, {self.parameters:,} parameters", ""]
        lines += [f"  {name} = {_show(value)}" for name, value in self.options.items() if value is not None]
        lines += ["", "needs"]
        installed = {e.id for e in registry.entries()}
        for id, origin in self.provenance.items():
            here = "" if id in installed else "   (not installed here)"
            lines.append(f"  {id}: {origin.get('distribution')} {origin.get('version')}{here}")
        lines += ["", f"written by Keras {self.keras_version} on {self.date}"]
        lines.append("with optimizer and loss" if self.compiled else "without optimizer")
        return "\n".join(lines)


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."


def inspect(path: "str | Path") -> Saved:
    """Reads what a saved model is, without building it: no TensorFlow, no plugin is imported.

    Args:
        path: A `.keras` file.

    Raises:
        FileFormatError: The file is missing, damaged, or not a model of this library.
    """
    path = Path(path)
    with _open(path) as archive:
        metadata = _read_json(archive, path, "metadata.json")
        whole = _read_json(archive, path, "config.json")
        config = whole.get("config")
        kind, _, name = str(whole.get("registered_name", "")).rpartition(">")[2].partition(".")
        if kind != "model" or not name or not isinstance(config, dict):
            raise FileFormatError(
                f"{path.name} is a Keras file, but not a model of the registry: it holds "
                f"{whole.get('registered_name') or whole.get('class_name')!r}. Load it with keras.saving.load_model."
            )
        namespace = str(whole["registered_name"]).partition(">")[0].removeprefix("kerastf").removeprefix(".")
        weights = _weight_shapes(archive, path)
    provenance = config.get("provenance") or {}
    if wrong := unsound(config):
        raise FileFormatError(f"{path.name}: {wrong}")
    return Saved(
        path=path,
        model=f"{namespace}/{name}" if namespace else name,
        options={k: v for k, v in config.items() if k != "provenance"},
        provenance=provenance,
        keras_version=str(metadata.get("keras_version")),
        date=str(metadata.get("date_saved")),
        compiled=whole.get("compile_config") is not None,
        weights=weights,
    )


@contextlib.contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """Opens the archive and checks its members before any is read."""
    if not path.exists():
        raise FileFormatError(f"There is no file {path}. Received: path={str(path)!r}")
    if path.is_dir():
        raise FileFormatError(f"{path} is a folder; a saved model is one .keras file. Received: path={str(path)!r}")
    if not path.is_file():  # a device may never end, and a pipe never begin
        raise FileFormatError(f"{path} is not an ordinary file. Received: path={str(path)!r}")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, path)
            yield archive
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise FileFormatError(
            f"{path.name} is damaged or not a .keras file ({error}; {path.stat().st_size:,} bytes). "
            f"Save or copy it again."
        ) from None


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    names = [m.filename for m in members]
    files = {name for name in names if not name.endswith("/")}
    for name in names:
        if name.startswith(("/", "\\")) or ".." in Path(name).parts or ":" in name:
            raise FileFormatError(f"{path.name} holds a member that would leave its folder: {name!r}. It is refused.")
        if name not in MEMBERS and not name.startswith("assets/"):
            raise FileFormatError(f"{path.name} holds an unexpected member: {name!r}. It is refused.")
        both = name.endswith("/") and name.rstrip("/") in files
        if both or not files.isdisjoint(map(str, PurePosixPath(name).parents)):
            raise FileFormatError(f"{path.name} holds {name!r} within what is no folder. It is refused.")
    for member in members:
        if stat.S_ISLNK(member.external_attr >> 16):
            raise FileFormatError(f"{path.name} holds a link: {member.filename!r}. It is refused.")
    missing = [m for m in MEMBERS if m not in names]
    if missing:
        raise FileFormatError(f"{path.name} is not a whole .keras file: it lacks {', '.join(missing)}.")
    if len(set(names)) != len(names):
        raise FileFormatError(f"{path.name} holds a member twice. It is refused.")
    size = path.stat().st_size
    most = 100 * size + 2**20
    for member in members:
        limit = LARGEST_TEXT if member.filename.endswith(".json") else most
        if member.file_size > limit:
            raise FileFormatError(
                f"{path.name} declares {member.file_size:,} bytes for {member.filename!r}, beyond what a file of "
                f"{size:,} bytes can hold. It is refused."
            )
    total = sum(member.file_size for member in members)
    if total > most + LARGEST_TEXT:
        raise FileFormatError(
            f"{path.name} declares {total:,} bytes in all, beyond what a file of {size:,} bytes can hold. It is "
            f"refused."
        )


def _read_json(archive: zipfile.ZipFile, path: Path, member: str) -> dict[str, Any]:
    try:
        found = json.loads(archive.read(member))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path.name}: {member} is not JSON ({error}).") from None
    if not isinstance(found, dict):
        raise FileFormatError(f"{path.name}: {member} is not a JSON object.")
    return found


class _Section(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: Any, start: int, size: int):
        self.file, self.start, self.size, self.at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = max(0, offset + (0, self.at, self.size)[whence])
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        self.file.seek(self.start + self.at)
        found = self.file.read(max(0, min(len(buffer), self.size - self.at)))
        buffer[: len(found)] = found
        self.at += len(found)
        return len(found)


@contextlib.contextmanager
def _stored(archive: zipfile.ZipFile, path: Path, name: str) -> Iterator[Any]:
    """A member to seek in. One that is not compressed is read in place: a zip stream begins anew at each seek back."""
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        with archive.open(name) as stream:
            yield stream
        return
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)  # the lengths of name and extra field, after which the data begin
        lengths = file.read(4)
        skip = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        yield io.BufferedReader(_Section(file, member.header_offset + 30 + skip, member.file_size))


def _weight_shapes(archive: zipfile.ZipFile, path: Path) -> dict[str, tuple[int, ...]]:
    import h5py

    found: dict[str, tuple[int, ...]] = {}

    def note(name: str, item: Any) -> None:
        if name.count("/") >= DEEPEST:
            raise FileFormatError(f"{path.name}: its weights stand in more than {DEEPEST} groups within groups.")
        if isinstance(item, h5py.Dataset) and not name.startswith(("optimizer", "_")) and "seed_generator" not in name:
            found[name.replace("/vars/", "/")] = tuple(item.shape)

    try:
        with _stored(archive, path, "model.weights.h5") as stream, h5py.File(stream, "r") as weights:
            weights.visititems(note)
    except FileFormatError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise FileFormatError(f"{path.name}: the weights are damaged ({error}).") from None
    return found


def load_model(path: "str | Path", *, plugins: str | Collection[str] = "all", compile: bool = True) -> Any:
    """Loads a saved model. A file can at most import installed plugins that it names.

    Args:
        path: A `.keras` file.
        plugins: Which plugins the file may use: `"all"`, `"none"` for files you do not trust, or namespaces.
        compile: Whether to restore the optimizer and the loss.

    Returns:
        The model.

    Raises:
        FileFormatError: The file is missing, damaged or of another kind, or names what is not known here.
        PluginError: It needs a plugin that is missing, or not allowed.
        ConfigError: An option is none that this version knows, or has a value that it cannot have.
        UnknownNameError: A block is none that this version knows.
    """
    saved = inspect(path)
    with _open(saved.path) as archive, archive.open("model.weights.h5") as stream:
        while stream.read(2**20):  # to the end, where the checksum is compared
            pass
    with only(plugins), registry.claims(saved.provenance), garbage.later():
        try:
            registry.resolve("model", saved.model)
        except LookupError:
            raise PluginError(
                f"{saved.path.name} holds the model `{saved.model}`, and no installed package offers it. "
                f"Installed plugins: kerastf plugins"
            ) from None
        import keras

        _require_trusted(saved.path, compile)
        with building.quickly(), _explained(saved.path):
            return keras.saving.load_model(str(path), compile=compile, safe_mode=True)


def _require_trusted(path: Path, compile: bool) -> None:
    with _open(path) as archive:
        whole = _read_json(archive, path, "config.json")
    if not compile:
        whole["compile_config"] = None  # as Keras does
    if not isinstance(whole.get("compile_config"), dict | None):
        raise FileFormatError(f"{path.name}: `compile_config` is not a JSON object.")
    trust.require_known(whole, path.name)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Within the block, whatever a configuration makes Python or Keras raise becomes an error that names the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}", error.problems) from None
    except UnknownNameError as error:
        raise UnknownNameError(f"{path.name}: {error}") from None
    except (FileFormatError, errors.RegistrationError, errors.InputError, ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        # Keras rewords a TypeError with the whole configuration in front of it.
        first = error.__context__ if isinstance(error, TypeError) and error.__context__ else error
        reason = f"it lacks {first}" if isinstance(first, KeyError) else " ".join(str(first).split())
        reason = reason if len(reason) <= 300 else f"{reason[:297]}..."
        raise FileFormatError(f"{path.name} cannot be loaded: {reason}") from error


def unsound(config: dict[str, Any]) -> str:
    """What is wrong with the parts of a saved configuration that are no options, or an empty string."""
    provenance, frozen = config.get("provenance") or {}, config.get("frozen") or []
    if not isinstance(provenance, dict) or not all(isinstance(claim, dict) for claim in provenance.values()):
        return f"`provenance` must say of each part where it comes from. Received: provenance={short(provenance)}"
    for id, claim in provenance.items():
        version = claim.get("config_version", 1)
        if type(version) is not int or version < 1:
            return f"`config_version` of `{id}` must be a positive integer. Received: config_version={short(version)}"
    if not isinstance(frozen, list) or not all(isinstance(path, str) for path in frozen):
        return f"`frozen` must be a list of the paths of weights. Received: frozen={short(frozen)}"
    return ""


@contextlib.contextmanager
def atomic(path: "str | Path") -> Iterator[Path]:
    """A path to write to; it takes the place of `path` when the block ends well, and is removed otherwise."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileFormatError(f"There is no folder {path.parent} to save in. Received: path={str(path)!r}")
    temporary = beside(path)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # less what the process masks
    try:
        yield temporary
        _to_disk(temporary)  # before the name changes, or a power failure could leave an empty file under it
        os.replace(temporary, path)
        _to_disk(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def appearing(path: "str | Path") -> Iterator[Path]:
    """A free path for a file or a folder; what is there when the block ends well gets the name `path`.

    Otherwise it is removed, and so are the folders that were made to hold it.
    """
    path = Path(path)
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    try:
        yield temporary
        for part in [*temporary.rglob("*"), temporary]:
            _to_disk(part)
        os.rename(temporary, path)
        _to_disk(path.parent)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else has put something there
            for folder in made:
                folder.rmdir()
        raise


def beside(path: Path) -> Path:
    """A free name in the same folder, hidden, with the same suffix."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")


def _to_disk(path: "str | Path") -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
