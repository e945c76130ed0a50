"""A GPU in virtual time, for tests of how probes measure."""
