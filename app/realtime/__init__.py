"""Speech in, text out, over a connection that stays open."""
