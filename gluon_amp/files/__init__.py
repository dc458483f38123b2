"""Files that are whole or absent, and that execute nothing when they are read."""
