"""The passes over a window before and after its text is decoded: audio, prompts, alignment."""
