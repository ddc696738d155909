"""A training stage's part on its host: `python -m tests.support.train_here JOB RESULT`.

JOB is a pickled `TrainingJob`. RESULT becomes the pickled pair of what `train_in_processes` returned and why it failed.
"""

import pickle
import sys
from pathlib import Path

from tasks.training import torchrun
from tasks.training.launch import train_in_processes
from tasks.training.records import TrainingError, TrainingResult

job, result = map(Path, sys.argv[1:3])
if len(sys.argv) > 3:
    torchrun.MEET_SECONDS = int(sys.argv[3])
made: TrainingResult | None = None
why = ""
try:
    made = train_in_processes(pickle.loads(job.read_bytes()), lambda record, total: None)
except TrainingError as error:
    why = str(error)
result.write_bytes(pickle.dumps((made, why)))
