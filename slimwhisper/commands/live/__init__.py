"""The `live` command: what is said in a stream of audio, while it is being said."""
