"""The connection to a daemon and the pure reducer to NodeState. Refuses widgets."""
