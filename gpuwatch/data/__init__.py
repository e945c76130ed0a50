"""Bundled data: the recording that `make demo` and a machine without a driver play."""
