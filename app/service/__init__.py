"""One engine for the requests of all users, and the order in which they get it."""
