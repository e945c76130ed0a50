"""Statistics and verdicts over probe results. Refuses torch."""
