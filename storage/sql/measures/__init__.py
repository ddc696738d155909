"""Views that measure: what was written and what it cost, how replay is used, how good critic and refiner are.

Each is a model of its columns and a query over the tables and the views before it.
"""

from storage.sql.measures.base import Views
from storage.sql.measures.improvement import IMPROVEMENT
from storage.sql.measures.learning import LEARNING
from storage.sql.measures.replay import REPLAY
from storage.sql.measures.texts import TEXTS

MEASURES: Views = {**TEXTS, **IMPROVEMENT, **REPLAY, **LEARNING}
