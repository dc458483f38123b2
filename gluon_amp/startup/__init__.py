"""What has to happen before and right after the import of MXNet."""
