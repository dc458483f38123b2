"""The import of MXNet and its private names; dtypes, formats, reads on the host, messages."""
