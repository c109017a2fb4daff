"""The page's transcripts: stored, edited, and timed again after edits."""
