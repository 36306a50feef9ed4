"""Speed and memory of kerastf beside KerasHub, transformers, plain PyTorch and a tutorial's loop.

Command:  python benchmarks/speed.py                  (needs the extra `peers`; the chart needs `plots`)
          python benchmarks/speed.py --cases 'train:gpt.*' --rounds 5 --json speed.json --chart speed.svg
          python benchmarks/speed.py --gpu
Hours:    2 on two cores for everything, in 7 rounds
Expected: per case and contestant the median and the quartiles, and the ratio of kerastf to each peer: below 1 is ours
          better

Each contestant lives in a process of its own, which builds the model and warms up. Then they take turns, round by
round, one at a time, and a ratio compares what was measured in the same round. A round in which the host took more than
2 % of the processors' time for others is run again. `startup` and `memory` start a fresh process for every measurement.
Cases for a GPU hold one contestant at a time, so that each has the whole memory.

train     seconds per step of `fit` (or of PyTorch's plain loop): forward, loss, backward, AdamW
generate  seconds per call, greedy, prompt of 16 tokens, after the first calls
startup   seconds from the start of a process to the end of its first training step
memory    highest resident memory of a process that trains; `growth` is what came on top of weights and optimizer
"""

import argparse
import signal
import sys
import time

from peers import cases, report
from peers.process import Contestant, Failure, Steal


def note(text):
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def undisturbed(measure, options):
    """Measures a round, again while the host took too much time.

    Returns:
        The round with the least stolen time, that share, and how often it was run again.
    """
    found = []
    for _ in range(options.retries + 1):
        with Steal() as steal:
            values = measure()
        found.append((steal.share, len(found), values))
        if steal.share <= options.steal:
            break
        note(f"    {steal.share:.1%} of the time was stolen")
    share, _, values = min(found)[:3]
    return values, share, len(found) - 1


class Race:
    """The rounds of one case.

    Args:
        name: Of the case.
        case: The case.
        names: The contestants.
        options: What the command line says.
    """

    def __init__(self, name, case, names, options):
        self.name, self.case, self.names, self.options = name, case, list(names), options
        self.rounds, self.missing, self.repeated, self.shares = [], {}, 0, []

    def result(self):
        """Runs all rounds, and says what came out."""
        if self.case["kind"] in ("startup", "memory"):
            self._take_turns(self._fresh)
        elif self.case["gpu"]:
            self._one_after_the_other()
        else:
            self._side_by_side()
        return {
            "case": {k: v for k, v in self.case.items() if k not in ("contestants", "only")},
            "rounds": len(self.rounds), "repeated": self.repeated, "stolen": self.shares, "missing": self.missing,
            "metrics": report.summarize(self.rounds, self.case["tokens"]),
        }  # fmt: skip

    def _fresh(self, name):
        """Metrics of a process that is started for them."""
        note(f"{self.name}: {name} starts")
        contestant = Contestant(name, self.case, self.options.timeout)
        try:
            found = contestant.answer()
            if self.case["kind"] == "startup":
                found = {"total s": time.perf_counter() - contestant.began, **found}
            return found
        finally:
            contestant.close()

    def _start(self, name):
        note(f"{self.name}: {name} builds and warms up")
        contestant = Contestant(name, self.case, self.options.timeout)
        try:
            contestant.answer()
        except BaseException:
            contestant.close()
            raise
        return contestant

    def _side_by_side(self):
        running = {}
        try:
            for name in self.names:
                try:
                    running[name] = self._start(name)
                except Failure as failure:
                    self._lose(name, failure)
            self.names = list(running)
            self._take_turns(lambda name: running[name].ask(self.case["steps"]))
        finally:
            for contestant in running.values():
                contestant.close()

    def _one_after_the_other(self):
        """Each contestant runs all its rounds and goes, so that the next one finds the memory free."""
        names, found = self.names, {}
        for name in names:
            try:
                contestant = self._start(name)
            except Failure as failure:
                self._lose(name, failure)
                continue
            self.names, self.rounds = [name], []
            try:
                self._take_turns(lambda _, c=contestant: c.ask(self.case["steps"]))
                peak = contestant.ask("memory")["peak"] if self.rounds else None
                found[name] = [{**r[name], **({"peak GB": peak} if peak else {})} for r in self.rounds]
            except Failure as failure:
                self._lose(name, failure)
            finally:
                contestant.close()
        count = max(map(len, found.values()), default=0)
        self.rounds = [{n: rows[i] for n, rows in found.items() if i < len(rows)} for i in range(count)]

    def _take_turns(self, measure):
        for number in range(self.options.rounds):

            def turn(number=number):
                values = {}
                start = number % max(len(self.names), 1)  # everybody begins a round now and then
                for name in self.names[start:] + self.names[:start]:
                    try:
                        values[name] = measure(name)
                    except Failure as failure:
                        self._lose(name, failure)
                self.names = [n for n in self.names if n not in self.missing]
                return {n: values[n] for n in self.names if n in values}

            if not self.names:
                return
            values, share, again = undisturbed(turn, self.options)
            self.repeated += again
            self.shares.append(round(share, 4))
            if values:
                self.rounds.append(values)
            shown = ", ".join(f"{n} {next(iter(v.values())):.4g}" for n, v in values.items())
            note(f"{self.name}: round {number + 1}/{self.options.rounds}: {shown}")

    def _lose(self, name, failure):
        self.missing[name] = str(failure)
        note(f"{self.name}: {name} is missing: {failure}")


def arguments():
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"cases: {', '.join(cases.CASES)}\n\ncontestants: {', '.join(cases.CONTESTANTS)}",
    )  # fmt: skip
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="names or patterns of cases (all of the CPU's)")
    parser.add_argument(
        "--contestants", nargs="+", metavar="NAME", choices=list(cases.CONTESTANTS),
        help="who takes part; those on JAX do only when named (all that can)",
    )  # fmt: skip
    parser.add_argument("--gpu", action="store_true", help="the GPU's cases instead of the CPU's")
    parser.add_argument("--rounds", type=int, default=7, help="how many rounds (7)")
    parser.add_argument("--steps", type=int, help="steps or calls per turn (each case's own)")
    parser.add_argument("--layers", type=int, help="another number of layers, to try things out")
    parser.add_argument("--steal", type=float, default=0.02, help="share of stolen time that spoils a round (0.02)")
    parser.add_argument("--retries", type=int, default=3, help="how often such a round is run again at most (3)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds to wait for one answer (1800)")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured")
    parser.add_argument("--chart", metavar="FILE", help="draw the ratios: an .svg or .png file")
    parser.add_argument("--list", action="store_true", help="list the cases and who takes part, and stop")
    options = parser.parse_args()
    for name in ("rounds", "steps", "layers"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1. Received: {getattr(options, name)}")
    try:
        chosen = cases.choose(options.cases, options.gpu)
    except ValueError as error:
        parser.error(str(error))
    return options, chosen


def main():
    """Runs the cases, and prints each as soon as it is finished."""
    options, chosen = arguments()
    results = {}
    for name, case in chosen.items():
        names = cases.contestants_of(case, options.contestants)
        if options.list:
            print(f"{name:<28}{', '.join(names)}")
            continue
        if not names:
            note(f"{name}: nobody of those asked for can take part")
            continue
        sizes = dict(case["sizes"])
        if options.layers and "num_layers" in sizes:
            sizes["num_layers"] = options.layers
        case = {**case, "sizes": sizes, "steps": options.steps or case["steps"]}
        results[name] = Race(name, case, names, options).result()
        print(report.table(name, results[name]), flush=True)
        if options.json:
            settings = {k: v for k, v in vars(options).items() if k not in ("json", "chart", "list")}
            report.write_json(options.json, results, settings)
    if options.chart and not report.draw(options.chart, results):
        note("There is no ratio to draw: nobody stood beside kerastf")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop ends the contestants, too
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
