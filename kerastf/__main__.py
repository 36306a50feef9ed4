"""`python -m kerastf` is the command line."""

import sys

from kerastf.cli import main

sys.exit(main())
