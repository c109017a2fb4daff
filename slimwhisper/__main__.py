"""`python -m slimwhisper`: the command line."""

import sys

from slimwhisper.cli import main

if __name__ == "__main__":
    sys.exit(main())
