"""When each word is spoken: `whisper`'s times from attention, or finer ones from the sound."""
