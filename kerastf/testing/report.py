"""Checks and their verdicts: how a contract is run and read."""

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kerastf import compat

LEVELS = ("quick", "full")


class Broken(AssertionError):
    """A check found the contract broken; the message tells the author what to look at."""


class NotAsked(Exception):
    """A check does not apply to this subject; the message tells why."""


class Warned(Exception):
    """A check found what is allowed but should be looked at; the message tells what."""


class ContractError(AssertionError):
    """A block or model does not keep its contract. The message is the whole report.

    Attributes:
        report: The `Report`.
    """

    def __init__(self, report: "Report"):
        super().__init__(f"\n{report}")
        self.report = report


@dataclass(frozen=True)
class Check:
    """One clause of a contract as code.

    Attributes:
        name: Short name, shown in the report.
        kinds: The kinds it applies to.
        level: `"quick"` checks run always, `"full"` ones when asked for.
        promise: What holds when it passes.
        run: Takes a subject; raises `Broken`, `Warned` or `NotAsked`.
    """

    name: str
    kinds: tuple[str, ...]
    level: str
    promise: str
    run: Callable[[Any], None]


CHECKS: list[Check] = []


def check(
    name: str, kinds: Iterable[str], promise: str, level: str = "quick", into: list[Check] = CHECKS
) -> Callable:  # fmt: skip
    """Adds a function to the contract of some kinds."""

    def decorate(function):
        into.append(Check(name, tuple(kinds), level, promise, function))
        return function

    return decorate


@dataclass
class Verdict:
    """The outcome of one check: `ok`, `FAIL`, `warn` or `skip`, and a sentence."""

    name: str
    outcome: str
    sentence: str
    seconds: float = 0.0
    details: str = field(default="", repr=False)


@dataclass
class Report:
    """The outcome of a contract."""

    subject: str
    verdicts: list[Verdict]

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [v.name for v in self.verdicts if v.outcome == "FAIL"]

    @property
    def warned(self) -> list[str]:
        """Names of the checks that warned."""
        return [v.name for v in self.verdicts if v.outcome == "warn"]

    def __str__(self) -> str:
        count = {o: sum(v.outcome == o for v in self.verdicts) for o in ("ok", "FAIL", "skip")}
        head = f"{self.subject}: {count['ok']} checks passed, {count['FAIL']} failed, {count['skip']} not asked for"
        head += f", {len(self.warned)} warned" if self.warned else ""
        width = max((len(v.name) for v in self.verdicts), default=0)
        lines = [f"  {v.outcome:<4}  {v.name:<{width}}  {v.sentence}" for v in self.verdicts]
        return "\n".join([head, *lines])

    __repr__ = __str__


def run_checks(subject, level: str, only: Iterable[str] | None = None) -> Report:
    """Runs the checks of the subject's kind and raises `ContractError` where one fails."""
    if level not in LEVELS:
        raise ValueError(f"`level` must be 'quick' or 'full'. Received: level={level!r}")
    verdicts = []
    for item in CHECKS:
        wanted = only is None or item.name in set(only)
        if subject.kind in item.kinds and wanted and (item.level == "quick" or level == "full"):
            verdicts.append(run_check(item, subject))
    report = Report(f"{subject.kind} `{subject.id}`", verdicts)
    if not report.ok:
        raise ContractError(report)
    return report


def run_check(item: Check, subject) -> Verdict:
    """Runs one check; whatever it raises becomes the verdict."""
    start = time.perf_counter()
    details = ""
    try:
        with compat.exact_products():
            item.run(subject)
        outcome, sentence = "ok", item.promise
    except NotAsked as reason:
        outcome, sentence = "skip", str(reason)
    except Warned as remark:
        outcome, sentence = "warn", str(remark)
    except Broken as problem:
        outcome, sentence = "FAIL", str(problem)
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0][:200]
        outcome, sentence = "FAIL", f"raised {type(error).__name__}: {first}"
        details = traceback.format_exc()
    return Verdict(item.name, outcome, sentence, time.perf_counter() - start, details)
