"""Tables of results: runs of several configurations and seeds, compared with statistics."""
