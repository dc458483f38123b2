"""What makes the figures in `docs/`. It is not installed: run it from a checkout."""
