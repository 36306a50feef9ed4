"""What blocks cost in every slot of every preset: the data of the page where blocks are chosen.

python docs/_site/choices.py          writes docs/_site/choices.json

Costs add up over slots, except where one block changes what another builds; such two are counted together. In stacks of
equal layers costs grow by the same step with each layer, so two shallow models tell those of a deep one. A test builds
whole models and compares.

Where a head reads the features of few positions, the last layer computes no others, if its blocks can do so. Within
each such mode costs add up; so each has a table.
"""

import contextlib
import itertools
import json
import sys
from pathlib import Path
from unittest import mock

import kerastf
from kerastf import compat, config, registry
from kerastf.blocks.stack import TransformerLayer

PATH = Path(__file__).parent / "choices.json"
FAMILIES = ("gpt", "bert", "transformer", "vit", "rnn", "seq2seq", "conv_s2s", "conv_lm")
MEASURES = ("parameters", "flops", "activation_bytes")
# An attention applies some positions itself, and between encoder and decoder it reads what the cells give.
PAIRS = (("attention", "position"), ("cell", "attention"))
VOCABULARY = 10_000  # where a preset leaves it open
# What a block needs beyond what the model tells it.
OPTIONS = {
    "window": {"window": 64}, "classifier": {"num_classes": 2}, "tagger": {"num_classes": 2},
}  # fmt: skip
# What is read decides the embedding, and the task the head: these are the tasks that a body is used for.
HEADS = {
    "gpt": ["language_model", "classifier", "tagger", "features"],
    "bert": ["pretraining", "masked_language_model", "classifier", "tagger", "span", "features"],
    "rnn": ["language_model", "classifier", "tagger", "features"],
    "vit": ["classifier", "features"],
}
NARROWING = ("bert", "vit")  # families whose last layer may compute few positions


def value_of(name):
    """What is written into a slot for a block."""
    return {"name": name, **OPTIONS[name]} if name in OPTIONS else name


def given_of(family, preset):
    """The options beside the slots that the call needs."""
    cls = registry.resolve("model", family)
    open_size = "vocab_size" in config.options_of(cls) and "vocab_size" not in presets_of(family)[preset]
    return {"vocab_size": VOCABULARY} if open_size else {}


def presets_of(family):
    return registry.presets(registry.find("model", family))


def slots_of(family):
    """By slot, the blocks of its kind."""
    found = {}
    for slot in registry.resolve("model", family).slots:
        if slot not in ("embedding", "head"):
            found[slot] = [e.id for e in registry.entries(config.slot_kind(slot))]
    return {**found, **({"head": HEADS[family]} if family in HEADS else {})}


def defaults_of(family, preset):
    """By slot, the block that a preset has."""
    known = config.options_of(registry.resolve("model", family))
    found = {slot: presets_of(family)[preset].get(slot, known[slot].default) for slot in slots_of(family)}
    return {slot: value["name"] if isinstance(value, dict) else value for slot, value in found.items()}


def why_not(family, preset, chosen):
    """Why a choice is refused, or an empty text."""
    options = {**presets_of(family)[preset], **given_of(family, preset)}
    options |= changed(family, preset, chosen)
    try:
        config.plan(registry.resolve("model", family), options, subject=family)
    except ValueError as error:
        return str(error)
    return ""


def changed(family, preset, chosen):
    """The slots that differ from the preset's, as keywords."""
    return {s: value_of(n) for s, n in chosen.items() if n != defaults_of(family, preset)[s]}


def cost_of(family, preset, chosen, **options):
    """Parameters, arithmetic and bytes of activations of one model, counted on the whole of it."""
    found = kerastf.cost(
        f"{family}.{preset}", **given_of(family, preset), **changed(family, preset, chosen), **options
    )  # fmt: skip
    return [getattr(found, measure) for measure in MEASURES]


def quick_cost(family, preset, chosen):
    """The same from models of one layer and of two, where depth is more."""
    options = {**config.options_of(registry.resolve("model", family)), **presets_of(family)[preset]}
    depth = options["num_layers"]
    depth = getattr(depth, "default", depth)
    if depth <= 2:
        return cost_of(family, preset, chosen)
    one, two = (cost_of(family, preset, chosen, num_layers=n) for n in (1, 2))
    return [a + (depth - 1) * (b - a) for a, b in zip(one, two, strict=True)]


def refusals(family):
    """The least choices that are refused, with the reasons: of one slot, or of two."""
    preset = next(iter(presets_of(family)))
    base, slots, found = defaults_of(family, preset), slots_of(family), []
    for count in (1, 2):
        for some in itertools.combinations(slots, count):
            for names in itertools.product(*(slots[s] for s in some)):
                part = dict(zip(some, names, strict=True))
                known = any(r["when"].items() <= part.items() for r in found)
                why = "" if known else why_not(family, preset, {**base, **part})
                if why:
                    found.append({"when": part, "why": why})
    return found


def is_refused(refused, chosen):
    return [r["why"] for r in refused if r["when"].items() <= chosen.items()]


def family_table(family):
    """Everything the page needs to know of a family."""
    slots = slots_of(family)
    found = {"slots": slots, "refused": refusals(family), "presets": {}}
    if family in NARROWING:
        found |= {"reads": reads_of(family), "narrow": narrowing(slots)}
    for preset in presets_of(family):
        base = defaults_of(family, preset)
        known = {"given": given_of(family, preset), "default": base, **costs_of(family, preset, found, base)}
        own = mode_of(found, base)
        modes = sorted({*found.get("reads", {}).values(), own} - {own})
        if modes:
            known["modes"] = {mode: costs_of(family, preset, found, base, mode) for mode in modes}
        found["presets"][preset] = known
        print(f"{family}.{preset}: {len(known['changes'])} choices, modes: {modes or 1}", file=sys.stderr, flush=True)
    return found


def costs_of(family, preset, table, base, mode=None):
    """What a preset costs in a mode, and how other blocks change that; by default in its own.

    There, a block that alone leads to another mode is counted as well; such a change can be added to no other.
    """
    found = {}
    own = mode_of(table, base)
    if mode not in (None, "all"):  # with a head that leads to it
        found["head"] = next(name for name, reads in table["reads"].items() if reads == mode)
        base = {**base, "head": found["head"]}
    wide = mock.patch.object(TransformerLayer, "can_narrow", lambda self: False)
    with wide if mode == "all" else contextlib.nullcontext():
        whole = quick_cost(family, preset, base)
        found |= {"cost": whole, "changes": {}}
        for part in parts(family, base):
            chosen = {**base, **part}
            there = mode == "all" or mode_of(table, chosen) == (mode or own) or (mode is None and len(part) == 1)
            if there and not is_refused(table["refused"], chosen):
                new = quick_cost(family, preset, chosen)
                key = "+".join(f"{s}:{n}" for s, n in part.items())
                found["changes"][key] = [n - w for n, w in zip(new, whole, strict=True)]
    return found


def reads_of(family):
    """By head, which positions' features it reads."""
    preset, found = next(iter(presets_of(family))), {}
    for name in HEADS[family]:
        with compat.without_allocation():
            given = {**given_of(family, preset), "head": value_of(name)}
            model = config.build_model(f"{family}.{preset}", num_layers=1, **given)
        found[name] = getattr(model.head, "reads", "all")
    return found


def narrowing(slots):
    """By slot, the blocks with which a last layer can compute few positions alone."""
    found = {"attention": [], "feedforward": [], "norm": []}
    usual = {"attention": "multi_head", "feedforward": "mlp", "norm": "layer"}
    for slot, names in found.items():
        for name in slots[slot]:
            specs = {**usual, slot: name}
            names += [name] if TransformerLayer(specs.pop("attention"), **specs).can_narrow() else []
    return found


def mode_of(table, chosen):
    """Which positions the last layer computes: those that the head reads, where all blocks can do so, or all."""
    able = all(chosen[slot] in names for slot, names in table.get("narrow", {}).items())
    return table["reads"].get(chosen["head"], "all") if able and "reads" in table else "all"


def parts(family, base):
    """What is counted: each other block alone, and two together where one changes what the other builds."""
    slots = slots_of(family)
    for slot, names in slots.items():
        yield from ({slot: name} for name in names if name != base[slot])
    for first, second in PAIRS:
        if first in slots and second in slots:
            for names in itertools.product(slots[first], slots[second]):
                part = dict(zip((first, second), names, strict=True))
                if not part.items() & base.items() and is_joint(part):
                    yield part


def is_joint(part):
    """Whether two blocks cost together something else than alone; with a position that is added they do not."""
    return "embeddings" not in registry.find("position", part.get("position", "rotary")).manifest["supports"]


def total(table, preset, chosen):
    """The cost of a choice, added up from the table as the page does it."""
    known = table["presets"][preset]
    mode = mode_of(table, chosen)
    found = known if mode == mode_of(table, known["default"]) else known["modes"][mode]
    base = {**known["default"], "head": found.get("head", known["default"].get("head"))}
    keys = [f"{s}:{n}" for s, n in chosen.items() if n != base[s]]
    for together in itertools.permutations(keys, 2):
        if "+".join(together) in found["changes"]:
            keys = [k for k in keys if k not in together] + ["+".join(together)]
            break
    return [sum(sums) for sums in zip(found["cost"], *(found["changes"][k] for k in keys), strict=True)]


def main():
    tables = {family: family_table(family) for family in FAMILIES}
    values = {name: value_of(name) for name in OPTIONS}
    text = json.dumps({"measures": MEASURES, "values": values, "families": tables}, separators=(",", ":"))
    PATH.write_text(text + "\n", "utf-8")
    print(f"{PATH.name}: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
