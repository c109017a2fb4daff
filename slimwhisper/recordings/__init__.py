"""All that is asked of recordings: many at once, channels, scripts, speakers, flags, sentences."""
