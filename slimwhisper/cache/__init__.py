"""What the decoder keeps of the audio and the text, in which form, and whether that is exact."""
