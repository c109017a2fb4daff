"""What a job leaves: output files, rows of a table, marks in the journal, a report."""
