"""Training runs: what the scripts share."""
