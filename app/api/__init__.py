"""OpenAI's audio API over HTTP, who may ask, and what Prometheus scrapes."""
