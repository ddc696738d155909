"""Orchestration: order, pools, retries, reuse, the local stack, and the command `nlac`.

No other package knows Prefect. A flow computes nothing: it loads the configuration, takes the run's lock and the GPU,
and calls `tasks.pipeline.runner`. `cli` imports `deployments` and `stack`, `deployments` imports `stack`, and `stack`
neither of them. What must stay true here:
- torch, transformers and vllm are imported inside stage bodies only, never when a flow is loaded;
- flows pass references (run, iteration, stage), never data;
- whatever starts a Prefect process gives it the environment of `flows.stack.environment`, so that a user's own
  Prefect profile or PREFECT_API_URL is never hit.
"""
