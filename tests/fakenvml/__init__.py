"""A fake NVML library for tests: see fake_nvml.c for the scenario format."""
