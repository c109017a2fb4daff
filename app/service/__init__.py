"""The transcription service: the requests of all users share one model and its engines."""
