"""MiniWoB++: tasks on web pages, in a real browser without a network.

The package `miniwob` provides the pages, with their generators, rewards and seeds; nothing of it is copied. Here are
the browsers, a page's clock, the observation as text, and the grammar of actions.
"""

from tasks.environments.miniwob.environment import MiniWoB

__all__ = ["MiniWoB"]
