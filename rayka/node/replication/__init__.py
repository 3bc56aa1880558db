"""The replicas of one broker: led, followed, and reported to the controller."""
