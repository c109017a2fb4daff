"""Where checkpoints come from: names, the Hugging Face hub, other programs' formats, adapters."""
