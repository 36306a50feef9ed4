"""The contracts as code. Our own tests and those of plugin authors call the same two functions."""

from collections.abc import Iterator

from kerastf import config, registry
from kerastf.testing import generic, heads, models, samplers, sequences  # noqa: F401  (they add their checks)
from kerastf.testing.models import reference_generate
from kerastf.testing.report import CHECKS, ContractError, Report, run_checks
from kerastf.testing.subjects import BlockSubject, ModelSubject, Subject

__all__ = ["CHECKS", "ContractError", "Report", "check_block", "check_model", "matrix", "reference_generate"]


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


def matrix(kind="attention", only=("steps", "fit")) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Tries every block of a kind in every slot of every model family.

    Args:
        kind: The kind of block.
        only: Names of the model checks to run on each combination.

    Yields:
        Family, slot and block, and then `"ok"`, or why the combination is refused or what fails.
    """
    for family in registry.entries("model"):
        slots = [s for s in registry.resolve("model", family.id).slots if config.slot_kind(s) == kind]
        for slot in slots:
            for block in registry.entries(kind):
                yield (family.id, slot, block.id), _outcome(family.id, {slot: block.id}, only)


def _outcome(id, slots, only):
    chosen = subject("model", id, slots)
    try:
        chosen.make()
    except (ValueError, LookupError, ImportError) as refusal:
        return str(refusal)
    try:
        run_checks(chosen, "quick", only)
    except ContractError as error:
        broken = next(v for v in error.report.verdicts if v.outcome == "FAIL")
        return f"{broken.name} fails: {broken.sentence}"
    return "ok"


def subject(kind, id, options=None) -> Subject:
    """What the checks of a kind are run on."""
    registry.require_kind(kind)
    if kind == "model":
        return ModelSubject(id, options or {})
    return (Subject if kind == "sampler" else BlockSubject)(kind, id, options or {})
