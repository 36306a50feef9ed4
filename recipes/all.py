"""Trains every small recipe and prints what each reached beside what it should.

Command:  python recipes/all.py           (or: make recipes)
Minutes:  about 15 on two cores; each recipe less than 3
Expected: a table that ends with `all reached`
"""

import argparse
import sys
import time
from pathlib import Path

from kerastf import training


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these, such as gpt vit")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs (runs)")
    options = parser.parse_args()
    rows, missed = [], 0
    for path in sorted((Path(__file__).parent / "small").glob("*.toml")):
        if options.names and path.stem not in options.names:
            continue
        began = time.monotonic()
        recipe = training.read_recipe(path)
        results = training.train(path, options.out / path.stem)
        expect = recipe.expect
        sign, bound = ("<=", expect["at_most"]) if expect["at_most"] is not None else (">=", expect["at_least"])
        got = results[expect["metric"]]
        reached = got <= bound if sign == "<=" else got >= bound
        missed += not reached
        minutes = (time.monotonic() - began) / 60
        rows.append((recipe.family, expect["metric"], f"{sign} {bound}", f"{got:.4f}", f"{minutes:.1f}",
                     "" if reached else "missed"))  # fmt: skip
    print()
    print(f"{'family':<14}{'metric':<16}{'expected':<12}{'got':<10}{'minutes':<9}")
    for family, metric, expected, got, minutes, note in rows:
        print(f"{family:<14}{metric:<16}{expected:<12}{got:<10}{minutes:<9}{note}".rstrip())
    print("all reached" if not missed else f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
