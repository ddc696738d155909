"""Completion-only fine-tuning, of LoRA adapters or of all weights, with target parameters as an exponential average.

    job, records                  what a training is given, and what it gives back
    fine_tuning                   the same for a stage, with rows and metrics
    policy_rows                   which rows an algorithm trains its policy on
    data, batches                 examples as token ids, and as batches and micro-batches
    loss, vocabulary_losses       the losses
    clipped_ratio                 the loss of sampled turns, for policy-gradient algorithms
    anchor                        the KL to the base model
    model, lora, trainable        the model to start from, and what of it trains
    optimizer, ema                optimizer state, target parameters
    step, trainer, checkpoint     one step, the loop over steps, its checkpoint
    launch, worker, processes     several processes; `sharding` spreads a model over them
    adapters                      what a stage leaves on disk
    cpu/                          what is computed in its own way on a CPU

Not here: how rows become examples (`tasks.datasets`), tables, Prefect. `fine_tuning`, `job`, `records`, `policy_rows`,
`data`, `batches`, `launch` and `adapters` import no torch. The others do, so import those inside a stage's body.
"""
