"""The terminal UI. view and chart are pure; widgets only paint."""
