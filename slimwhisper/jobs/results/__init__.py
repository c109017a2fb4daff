"""The results of a job: output files, rows of a table, records in the journal, a report."""
