"""Draws the pictures of the course and the gallery: runs every page in full, in the folder of its pictures.

python docs/_site/draw.py [page ...]
"""

import os
import sys
import time

from checks import ROOT, TRAINED, run


def main():
    for path in TRAINED:
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            folder = ROOT / "docs" / "images" / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            os.chdir(folder)
            start = time.perf_counter()
            run(path)
            print(f"{path.stem}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
