"""Medians, quartiles and paired ratios of what was measured; as a table, as JSON, as a chart."""

import importlib.metadata
import json
import os
import platform
import statistics
from pathlib import Path

from peers.cases import CONTESTANTS, OURS

PACKAGES = ("kerastf", "keras", "keras-hub", "tensorflow", "jax", "torch", "transformers")


def quartiles(values):
    """First quartile, median, third quartile."""
    if len(values) < 2:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def summarize(rounds, tokens):
    """By metric and contestant: medians and quartiles, and ratios of ours to each peer, paired by round.

    Args:
        rounds: One dict per round: by contestant, its metrics by name.
        tokens: How many tokens a step has, for tokens per second.
    """
    found = {}
    for metric in dict.fromkeys(m for r in rounds for metrics in r.values() for m in metrics):
        rows = found[metric] = {}
        for name in dict.fromkeys(n for r in rounds for n in r):
            values = [r[name][metric] for r in rounds if metric in r.get(name, {})]
            if values:
                low, middle, high = quartiles(values)
                rows[name] = {"median": middle, "low": low, "high": high, "values": values}
                if metric == "s" and tokens:
                    rows[name]["tokens_per_second"] = tokens / middle
        for ours in (n for n in OURS if n in rows):
            for peer in (n for n in rows if n not in OURS):
                pairs = [r for r in rounds if metric in r.get(ours, {}) and metric in r.get(peer, {})]
                ratios = [r[ours][metric] / r[peer][metric] for r in pairs if r[peer][metric]]
                if ratios:
                    low, middle, high = quartiles(ratios)
                    rows[peer].setdefault("ratios", {})[ours] = {"median": middle, "low": low, "high": high}
    return found


def table(name, result):
    """The lines of one case."""
    lines = [f"\n{name}  (rounds: {result['rounds']}, repeated for stolen time: {result['repeated']})"]
    for metric, rows in result["metrics"].items():
        title = "s per step" if metric == "s" else metric
        lines.append(f"  {title:<22}{'median':>10}{'quartiles':>20}{'tokens/s':>12}   kerastf / peer (quartiles)")
        for who, row in rows.items():
            spread = f"{_short(row['low'])} - {_short(row['high'])}"
            speed = f"{row['tokens_per_second']:,.0f}" if "tokens_per_second" in row else ""
            ratios = "; ".join(
                f"{r['median']:.2f} ({r['low']:.2f} - {r['high']:.2f}){'' if ours == OURS[0] else ' on JAX'}"
                for ours, r in row.get("ratios", {}).items()
            )
            label = CONTESTANTS[who]["label"]
            lines.append(f"  {label:<22}{_short(row['median']):>10}{spread:>20}{speed:>12}   {ratios}".rstrip())
    lines += [f"  {CONTESTANTS[who]['label']:<22} missing: {why}" for who, why in result["missing"].items()]
    return "\n".join(lines)


def _short(number):
    """Four digits, or all before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def write_json(path, results, settings):
    """Everything that was found, each single value included, and the versions of what was compared."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    host = {"python": platform.python_version(), "processor": _processor(), "cores": os.cpu_count()}
    found = {"versions": versions, "host": host, "settings": settings, "cases": results}
    Path(path).write_text(json.dumps(found, indent=1) + "\n")


def _processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def draw(path, results):
    """A bar chart of the ratios, one bar per case and peer; shorter than the line at 1 means that kerastf needs less.

    Returns:
        Whether there was anything to draw.
    """
    bars = [
        (f"{name}{'' if metric == 's' else f', {metric}'}", peer, ours, ratio)
        for name, result in results.items()
        for metric, rows in result["metrics"].items()
        for peer, row in rows.items()
        for ours, ratio in row.get("ratios", {}).items()
        if metric in ("s", "total s", "peak MB", "peak GB")
    ]
    if not bars:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    colours = {peer: f"C{i}" for i, peer in enumerate(p for p in CONTESTANTS if p not in OURS)}
    positions, ticks, y, last = [], {}, 0.0, None
    for name, *_ in bars:
        y += 1.0 if name == last else 1.8
        last = name
        positions.append(y)
        ticks.setdefault(name, []).append(y)
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.22 * y), layout="constrained")
    for at, (_, peer, ours, ratio) in zip(positions, bars, strict=True):
        reach = [[max(0.0, ratio["median"] - ratio["low"])], [max(0.0, ratio["high"] - ratio["median"])]]
        label = CONTESTANTS[peer]["label"]
        axes.barh(at, ratio["median"], 0.85, xerr=reach, color=colours[peer], ecolor="0.3", label=label)
        mark = "" if ours == OURS[0] else "  (kerastf on JAX)"
        text = axes.text(ratio["high"], at, f" {ratio['median']:.2f}{mark}", va="center", fontsize=8)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # the line at 1 may run behind it
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks([sum(at) / len(at) for at in ticks.values()], list(ticks))
    axes.invert_yaxis()
    axes.set_xlabel("kerastf / peer: below 1, kerastf needs less")
    axes.margins(x=0.3, y=0.01)  # room for the texts behind the bars
    order = [c["label"] for c in CONTESTANTS.values()]
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(sorted(zip(labels, handles, strict=True), key=lambda pair: order.index(pair[0])))
    figure.legend(unique.values(), unique.keys(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)
    return True
