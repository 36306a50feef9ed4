"""What blocks cost in every slot of every preset: the data of the page where blocks are chosen.

python docs/_site/choices.py          writes docs/_site/choices.json

Costs add up over slots, except where one block changes what another builds; such two are counted together. In stacks of
equal layers costs grow by the same step with each layer, so two shallow models tell those of a deep one. A test builds
whole models and compares.
"""

import itertools
import json
import sys
from pathlib import Path

import kerastf
from kerastf import config, registry

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
    refused = refusals(family)
    slots = slots_of(family)
    found = {"slots": slots, "refused": refused, "presets": {}}
    for preset in presets_of(family):
        base = defaults_of(family, preset)
        whole = quick_cost(family, preset, base)
        changes = {}
        for part in parts(family, preset):
            chosen = {**base, **part}
            if not is_refused(refused, chosen):
                new = quick_cost(family, preset, chosen)
                changes["+".join(f"{s}:{n}" for s, n in part.items())] = [
                    n - w for n, w in zip(new, whole, strict=True)
                ]
        found["presets"][preset] = {
            "given": given_of(family, preset), "default": base, "cost": whole, "changes": changes,
        }  # fmt: skip
        print(f"{family}.{preset}: {len(changes)} choices", file=sys.stderr, flush=True)
    return found


def parts(family, preset):
    """What is counted: each other block alone, and two together where one changes what the other builds."""
    slots, base = slots_of(family), defaults_of(family, preset)
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
    found = table["presets"][preset]
    keys = [f"{s}:{n}" for s, n in chosen.items() if n != found["default"][s]]
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
