"""`python -m slimwhisper.bench`: the `bench` command."""

import sys

from slimwhisper.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
