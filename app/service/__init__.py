"""One engine for all users' requests, and who is next."""
