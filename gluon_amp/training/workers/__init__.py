"""Runs of several processes: workers, their launcher and their supervisor."""
