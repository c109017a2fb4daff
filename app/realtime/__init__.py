"""Live transcription over an open connection: OpenAI's Realtime API, and Wyoming."""
