"""The recordings of a job: arguments -> files, and where the outputs of each go."""
