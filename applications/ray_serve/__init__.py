"""Replicas of the server on Ray Serve: `lade serve --replicas`."""
