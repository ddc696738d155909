"""Improving an action: critique it, refine it, validate the refinement; best of n and Monte-Carlo futures."""
