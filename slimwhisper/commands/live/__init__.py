"""The `live` command: transcribes a stream of audio in real time."""
