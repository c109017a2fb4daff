"""The web page and the HTTP routes, on top of `slimwhisper.api`."""
