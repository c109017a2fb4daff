"""The web page and the HTTP routes: what serves transcriptions to others, on top of `slimwhisper.transcribe`."""
