"""The journal, in which a job records its finished recordings, so that it can resume."""
