"""What a job has done before: its journal, where the lines are, and whose they are."""
