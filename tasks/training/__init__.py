"""Completion-only fine-tuning, of LoRA adapters or of all weights, with target parameters that follow as an
exponential average.

Here: rows to token ids and batches (data), the loss (loss), the KL to the base model (anchor), what a stage leaves
on disk (adapters), LoRA adapters (lora), the model to start from (model), what of it trains (trainable), target
parameters (ema), optimizer state (optimizer), one step (step), the loop over steps (trainer) and its checkpoint
(checkpoint); several processes (launch, worker, processes) and a model spread over them (sharding). Not here: which
rows are trained on, tables, Prefect.
`adapters`, `data`, `launch` and `records` import no torch; the others do, so import those inside a stage's body.
"""
