"""How long a user waits: `import kerastf`, `kerastf list`, `kerastf plugins`. Run: python benchmarks/startup.py"""

import statistics
import subprocess
import sys
import time

ROUNDS = 11
CASES = {
    "python, nothing imported": ["-c", "pass"],
    "import kerastf": ["-c", "import kerastf"],
    "kerastf list": ["-m", "kerastf", "list"],
    "kerastf plugins": ["-m", "kerastf", "plugins"],
    "import keras (for comparison)": ["-c", "import keras"],
    "import keras_nlp (for comparison)": ["-c", "import keras_nlp"],
}


def main():
    times = {name: [] for name in CASES}
    for round_ in range(ROUNDS):
        for name, arguments in CASES.items():
            if "comparison" in name and round_ >= 3:
                continue
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            times[name].append(time.perf_counter() - start)
    for name, found in times.items():
        print(f"{name:<34} median {statistics.median(found) * 1000:7.0f} ms   best {min(found) * 1000:7.0f} ms")


if __name__ == "__main__":
    main()
