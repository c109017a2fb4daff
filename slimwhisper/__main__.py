"""`python -m slimwhisper`."""

from slimwhisper.cli import entry

if __name__ == "__main__":
    entry()
