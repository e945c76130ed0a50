"""Recordings: raw evidence to one file and back, at any speed."""
