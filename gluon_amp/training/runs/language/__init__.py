"""Training runs of language models."""
