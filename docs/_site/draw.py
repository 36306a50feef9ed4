"""Draws the pictures of the course: runs every lesson in full, in the folder of its pictures.

python docs/_site/draw.py [lesson ...]
"""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main():
    sys.path.insert(0, str(ROOT / "tests"))
    from test_docs import LESSONS, run

    (ROOT / "docs" / "images" / "course").mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT / "docs" / "images" / "course")
    for path in LESSONS:
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            start = time.perf_counter()
            run(path)
            print(f"{path.stem}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
