"""Completion-only fine-tuning of LoRA adapters, with target parameters that follow as an exponential average.

Here: rows to token ids and batches (data), the loss (loss), adapters on disk (adapters), target parameters
(ema), optimizer state (optimizer), the base model (model) and the loop over them (trainer). Not here: which
rows are trained on, tables, Prefect. `adapters`, `data` and `records` import no torch; the others do, so
import those inside a stage's body.
"""
