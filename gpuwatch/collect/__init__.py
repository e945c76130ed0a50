"""Hardware and kernel to model. Refuses opinions: what a reading means is for diagnose."""
