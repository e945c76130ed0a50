"""The service: wiring, publishing, probe scheduling. Refuses measuring, judging, drawing."""
