"""The contestants of `benchmarks/speed.py`: what each case is, each library's program for it, how they take turns."""
