"""Episodes as traces in MLflow's trace viewer: a span for the episode, one per step, and below it the model calls.

Rows hold no clock times. So the spans of a trace stand in order, a millisecond each: their times say what came first,
not how long it took.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import Span

MILLISECOND = 1_000_000  # nanoseconds
PREVIEW = 500  # characters


@dataclass(frozen=True)
class TracedSpan:
    """One span.

    Attributes:
        name: what it is.
        kind: MLflow's span type: AGENT, CHAIN or CHAT_MODEL.
        inputs, outputs: as JSON.
        about: further attributes.
        failed: why it failed; None: it did not.
        below: spans within it, in order.
    """

    name: str
    kind: str
    inputs: Any
    outputs: Any
    about: Mapping[str, Any] = field(default_factory=dict)
    failed: str | None = None
    below: Sequence["TracedSpan"] = ()


@dataclass(frozen=True)
class EpisodeTrace:
    """An episode.

    Attributes:
        key: names the episode. An experiment gets one trace of a key.
        tags: of the trace.
        span: the episode.
    """

    key: str
    tags: Mapping[str, str]
    span: TracedSpan


def write_trace(uri: str, experiment_id: str, run_id: str, trace: EpisodeTrace, start_ms: int) -> bool:
    """Write a trace that is not there yet, linked to an MLflow run.

    Args:
        uri: of the tracking store.
        experiment_id: whose page shows it.
        run_id: the run that it is linked to.
        trace: the episode.
        start_ms: when it begins, milliseconds since the epoch.

    Returns:
        Whether it was written.
    """
    from mlflow.entities import TraceInfo, TraceLocation, TraceState
    from mlflow.exceptions import MlflowException
    from mlflow.tracing.client import TracingClient
    from mlflow.tracing.constant import TraceMetadataKey, TraceTagKey

    client = TracingClient(uri)
    digest = hashlib.sha256(f"{experiment_id}/{trace.key}".encode()).hexdigest()
    trace_id = f"tr-{digest[:32]}"
    try:
        client.get_trace_info(trace_id)
    except MlflowException:
        pass
    else:
        return False
    spans = _Spans(trace_id, start_ms * MILLISECOND)
    spans.add(trace.span, None)
    client.start_trace(
        TraceInfo(
            trace_id,
            TraceLocation.from_experiment_id(experiment_id),
            request_time=start_ms,
            state=TraceState.OK if trace.span.failed is None else TraceState.ERROR,
            request_preview=json.dumps(trace.span.inputs)[:PREVIEW],
            response_preview=json.dumps(trace.span.outputs)[:PREVIEW],
            execution_duration=spans.count,
            trace_metadata={TraceMetadataKey.SOURCE_RUN: run_id},
            tags={TraceTagKey.TRACE_NAME: trace.span.name, **trace.tags},
        )
    )
    client.log_spans(experiment_id, spans.made)
    return True


class _Spans:
    """Makes MLflow's spans, each a millisecond after the last."""

    def __init__(self, trace_id: str, start: int) -> None:
        self._trace_id, self._start = trace_id, start
        self.made: list[Span] = []
        self.count = 0

    def add(self, span: TracedSpan, parent: str | None) -> None:
        """A span and those below it."""
        from mlflow.entities import Span
        from mlflow.tracing.constant import SpanAttributeKey

        number, self.count = self.count, self.count + 1
        own = f"{number + 1:016x}"
        attributes = {
            SpanAttributeKey.REQUEST_ID: self._trace_id,
            SpanAttributeKey.SPAN_TYPE: span.kind,
            SpanAttributeKey.INPUTS: span.inputs,
            SpanAttributeKey.OUTPUTS: span.outputs,
            **span.about,
        }
        for below in span.below:
            self.add(below, own)
        code = "STATUS_CODE_OK" if span.failed is None else "STATUS_CODE_ERROR"
        made: dict[str, Any] = {
            "trace_id": self._trace_id,
            "span_id": own,
            "parent_span_id": parent,
            "name": span.name,
            "start_time_unix_nano": self._start + number * MILLISECOND,
            "end_time_unix_nano": self._start + self.count * MILLISECOND,
            "status": {"code": code, "message": span.failed or ""},
            "attributes": {name: json.dumps(value) for name, value in attributes.items()},
            "events": [],
            "links": [],
        }
        self.made.append(Span.from_dict(made))
