"""OpenAI's audio API over HTTP, access control, and metrics for Prometheus."""
