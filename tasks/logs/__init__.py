"""Importing logged conversations: records read as a stream, each turned into an episode and its transitions, or a
reject with the reason, and committed as a rollout. No stage, no model; constant memory."""
