"""Draws the pictures of the course: runs every lesson in full, in the folder of its pictures.

python docs/_site/draw.py [lesson ...]
"""

import os
import sys
import time

from checks import ROOT, run


def main():
    (ROOT / "docs" / "images" / "course").mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT / "docs" / "images" / "course")
    for path in sorted(ROOT.glob("docs/course/[0-9]*.md")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            start = time.perf_counter()
            run(path)
            print(f"{path.stem}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
