"""One file per sub-command, lazy imports. Refuses logic."""
