"""The web page and the HTTP API, built on `slimwhisper.api`."""
