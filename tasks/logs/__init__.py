"""Import of logged conversations as a rollout. Records are streamed in constant memory; each becomes an episode with
its transitions, or a reject with the reason. Uses no stage and no model."""
