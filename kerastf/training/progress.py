"""How a training is shown: one line that moves on a terminal, a line per evaluation elsewhere."""

import contextlib
import sys
import time

WIDTH = 24


class Progress:
    """Steps done, loss, speed, time left.

    Args:
        total: How many steps there are.
        units: How many units (tokens, images) a step has.
        unit: What they are called.
        stream: Where to write.
    """

    def __init__(self, total, units, unit, *, stream=None):
        self.total, self.units, self.unit = total, units, unit
        self.stream = stream or sys.stdout
        self.moving = self.stream.isatty()
        self.shown = time.monotonic()
        self.first = None  # when the first step was done: compiling is not speed
        self.paused = 0.0

    def step(self, step, logs):
        """Called after each step."""
        now = time.monotonic()
        if self.first is None:
            self.first = (now, step)
        if self.moving and (now - self.shown > 0.1 or step == self.total):
            self.shown = now
            self.stream.write(f"\r{self.line(step, logs, now)}\x1b[K")
            self.stream.flush()

    def line(self, step, logs, now):
        full = WIDTH * step // self.total
        values = "  ".join(f"{k} {v:.4g}" for k, v in logs.items())
        return f"{step}/{self.total} [{'=' * full}{'.' * (WIDTH - full)}] {values}  {self.pace(step, now)}"

    def pace(self, step, now=None):
        """Speed and time left, in words; without what evaluations and savings took."""
        seconds = self.step_seconds(step, now)
        if seconds is None:
            return "compiling"
        left = seconds * (self.total - step)
        return f"{_short(self.units / seconds)} {self.unit}/s  {duration(left)} left"

    def step_seconds(self, step, now=None):
        """How long a step takes, without the first, evaluations and savings; None before the second."""
        now = time.monotonic() if now is None else now
        if self.first is None or step <= self.first[1]:
            return None
        return max(now - self.first[0] - self.paused, 1e-9) / (step - self.first[1])

    @contextlib.contextmanager
    def pause(self):
        """Time within the block is not training."""
        began = time.monotonic()
        yield
        self.paused += time.monotonic() - began

    def say(self, text):
        """A line that stays."""
        self.stream.write(f"\r\x1b[K{text}\n" if self.moving else f"{text}\n")
        self.stream.flush()


def _short(number):
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def duration(seconds):
    """Seconds as 0:07, 12:30 or 3:05:00."""
    seconds = round(seconds)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"
