"""Model to text for machines: JSON. Refuses sockets."""
