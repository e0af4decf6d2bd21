"""Scorers of answers, by the text alone: the same text has the same score for every method."""
