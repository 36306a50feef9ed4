"""The contracts as code. Our own tests and those of plugin authors call the same functions."""

from collections.abc import Iterator

from kerastf import config, registry
from kerastf.errors import ConfigError, InputError, PluginError, UnknownNameError
from kerastf.testing import (  # noqa: F401  (they add their checks)
    converters,
    generic,
    heads,
    models,
    recurrence,
    samplers,
    sequences,
)
from kerastf.testing.report import CHECKS, ContractError, Report, run_checks
from kerastf.testing.subjects import BlockSubject, ModelSubject, OwnModelSubject, Subject

__all__ = ["CHECKS", "ContractError", "Report", "cells", "check_block", "check_model", "matrix", "outcome", "verify"]


def check_block(kind, id, *, level="quick", only=None, **options) -> Report:
    """Proves a block correct by the contract of its kind.

    Args:
        kind: `"attention"`, `"norm"`, ...
        id: Its id, or the class.
        level: `"quick"`, or `"full"` with XLA and a new process.
        only: Names of the checks to run; all by default.
        **options: The block's options, over those of its manifest's `example`.

    Returns:
        The report; print it.

    Raises:
        ContractError: A check failed; the message is the report.

    Examples:
        >>> import kerastf
        >>> kerastf.testing.check_block("norm", "rms", only=["shapes", "causal"])
        norm `rms`: 2 checks passed, 0 failed, 0 not asked for
          ok    shapes  symbolic and eager shapes agree
          ok    causal  no output sees a later input
    """
    return run_checks(subject(kind, id, options), level, only)


def check_model(id, *, level="quick", only=None, **options) -> Report:
    """Proves a model correct by the contract of models.

    Args:
        id: A family, or a preset (which should be small: everything is built and trained here).
        level: `"quick"`, or `"full"` with XLA and a new process.
        only: Names of the checks to run; all by default.
        **options: Options and slots, over those of its manifest's `example`.

    Returns:
        The report; print it.

    Raises:
        ContractError: A check failed; the message is the report.
    """
    return run_checks(subject("model", id, options), level, only)


def verify(model, *, level="quick", only=None) -> Report:
    """Proves a model of yours correct by the contract of models: its own blocks, options and weights.

    Copies of it are checked, its weights stirred by a thousandth so that none of them is silent; the model itself stays
    as it is. A large model takes as long as it is large.

    Args:
        model: A model of the registry.
        level: `"quick"`, or `"full"` with XLA and a new process.
        only: Names of the checks to run; all by default.

    Returns:
        The report; print it.

    Raises:
        ContractError: A check failed; the message is the report.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("gpt.nano", vocab_size=65, max_length=32, position="rotary")
        >>> kerastf.verify(model, only=["causal", "steps"])
        model `gpt`: 2 checks passed, 0 failed, 0 not asked for
          ok    causal  no output sees a later token
          ok    steps   step by step equals the whole
    """
    if not hasattr(type(model), "registry_entry"):
        raise InputError(f"Only a model of the registry has a contract. Received: {type(model).__name__}")
    return run_checks(OwnModelSubject(model), level, only)


def matrix(
    kind=None, only=("steps", "fit", "save"), *, model=None, block=None
) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Tries every block of a kind in every slot of every model family.

    A block gets only its name, and what it cannot do without and the family does not know from its manifest's
    `example`.

    Args:
        kind: The kind of block; None for all kinds that a model has a slot for.
        only: Names of the model checks to run on each combination.
        model: Id of the only family to try; None for all.
        block: Id of the only block to try; None for all.

    Yields:
        Family, slot and block, and then `"ok"`, or why the combination is refused or what fails.
    """
    for cell in cells(kind, model, block):
        yield cell, outcome(*cell, only)


def cells(kind=None, model=None, block=None) -> list[tuple[str, str, str]]:
    """Family, slot and block of each cell of the matrix. Models are imported, blocks are not.

    Args:
        kind: The kind of block; None for all.
        model: Id of the only family; None for all.
        block: Id of the only block; None for all.
    """
    return [
        (family.id, slot, entry.id)
        for family in registry.entries("model")
        if model in (None, family.id)
        for slot in registry.resolve("model", family.id).slots
        if kind in (None, config.slot_kind(slot))
        for entry in registry.entries(config.slot_kind(slot))
        if block in (None, entry.id)
    ]


def outcome(family, slot, block, only=("steps", "fit", "save")) -> str:
    """What comes of one block in one slot of one family: `"ok"`, why it is refused, or what fails.

    Args:
        family: Id of the model.
        slot: The slot.
        block: Id of the block.
        only: Names of the model checks to run.

    Examples:
        >>> import kerastf
        >>> kerastf.testing.outcome("rnn", "norm", "rms", only=["shapes"])
        'ok'
        >>> kerastf.testing.outcome("rnn", "embedding", "patch")
        "embedding `patch` reads images, and `rnn` reads tokens. Received: embedding='patch'"
    """
    try:
        chosen = subject("model", family, {slot: _slot_value(family, slot, block)})
        chosen.make()
    except (ConfigError, UnknownNameError, PluginError) as refusal:
        return str(refusal)
    except Exception as error:
        # A stranger's block may raise anything; a refusal would say what to write instead.
        return f"making it fails: {type(error).__name__}: {error}"
    try:
        run_checks(chosen, "quick", only)
    except ContractError as error:
        broken = next(v for v in error.report.verdicts if v.outcome == "FAIL")
        return f"{broken.name} fails: {broken.sentence}"
    return "ok"


def _slot_value(family, slot, block):
    """A block as small as its own example makes it, where the family says nothing of a size."""
    entry = registry.find(config.slot_kind(slot), block)
    own = config.options_of(registry.resolve(entry.kind, block))
    example = {k: v for k, v in entry.manifest.get("example", {}).items() if k in own}
    cls = registry.resolve("model", family)
    needed = {k: v for k, v in example.items() if own[k].default is own[k].empty and k not in config.options_of(cls)}
    options = {**registry.find("model", family).manifest.get("example", {}), slot: {"name": block, **needed}}
    try:
        told = config.plan(cls, options).blocks[slot][0]
    except ConfigError:
        told = example  # it is refused whatever its sizes
    chosen = {k: v for k, v in example.items() if k in needed or k not in told}
    return {"name": block, **chosen} if chosen else block


def subject(kind, id, options=None) -> Subject:
    """What the checks of a kind are run on."""
    registry.require_kind(kind)
    if kind == "model":
        return ModelSubject(id, options or {})
    return (Subject if kind in ("sampler", "converter") else BlockSubject)(kind, id, options or {})
