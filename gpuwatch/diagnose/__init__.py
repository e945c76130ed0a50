"""Evidence to findings. Pure: no clock, no file, no socket."""
