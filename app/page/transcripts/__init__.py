"""The transcripts that the page shows: kept, edited, timed again."""
