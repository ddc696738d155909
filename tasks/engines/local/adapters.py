"""One base model under many adapters: LoRA layers beside the weights, or adapters merged into copies of the weights."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig

from tasks.chat.messages import RequestError
from tasks.chat.tokenizers import ChatTokenizer
from tasks.engines.local.packed_weights import pack
from tasks.engines.protocol import Adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COPIES = 2  # full copies of the weights kept in memory besides the base
ADAPTERS = 4  # LoRA adapters kept in memory


def load_model(
    path: Path | str, revision: str | None, dtype: torch.dtype, device: str, attention: str
) -> PreTrainedModel:
    """Load a causal language model for inference; `attention` names one of transformers' implementations.

    Raises:
        RequestError: the model can't be loaded.
    """
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(path), revision=revision, dtype=dtype, attn_implementation=attention
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise RequestError(f"no model can be loaded from {path}: {str(error).splitlines()[0]}") from error
    # Checkpoints ship sampling defaults, such as a repetition penalty, that would override a request's.
    shipped = model.generation_config
    model.generation_config = GenerationConfig(
        bos_token_id=shipped.bos_token_id,
        eos_token_id=shipped.eos_token_id,
        pad_token_id=shipped.pad_token_id,
    )
    model.get_output_embeddings().register_forward_pre_hook(in_one_piece)
    loaded: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    return loaded


def in_one_piece(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """Forward pre-hook of the output layer that makes its input contiguous. For a slice of each row's positions torch
    would compute one product per row, and copy the whole vocabulary's weights for each."""
    return (inputs[0].contiguous(),)


def stop_ids(model: PreTrainedModel, tokenizer: ChatTokenizer) -> frozenset[int]:
    """Tokens that end a turn, according to the chat template and to the checkpoint."""
    named = model.generation_config.eos_token_id
    listed = [named] if isinstance(named, int) else list(named or [])
    return frozenset([*tokenizer.end_ids, *listed])


class AdapterPool:
    """The base model with any adapter applied. For use by one thread.

    Args:
        base: the model without an adapter.
        merge: merge adapters into copies of the weights, which compute as fast as the base (the last COPIES are kept).
            Otherwise LoRA layers stay beside the weights (the last ADAPTERS are kept).
        in_place: put full checkpoints in the place of the base's weights, which host memory keeps meanwhile. Otherwise
            each has a copy beside them, of which the last COPIES are kept.
        any_place: a row's result must not depend on its place in the batch.
    """

    def __init__(
        self, base: PreTrainedModel, *, merge: bool, in_place: bool = False, any_place: bool = False
    ) -> None:
        self._base, self._merge, self._in_place, self._any_place = base, merge, in_place, any_place
        self._own: dict[str, torch.Tensor] = {}  # the base's weights, once others have been in their place
        self._placed: str | None = None  # digest of those that are
        if not in_place:
            pack(base, any_place=any_place)
        self._peft: PeftModel | None = None
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._copies: OrderedDict[str, PreTrainedModel] = OrderedDict()

    @contextmanager
    def under(self, adapter: Adapter | None) -> Iterator[PreTrainedModel]:
        """The model with an adapter applied; None is the base model.

        Raises:
            RequestError: the adapter can't be loaded.
        """
        if self._in_place and (adapter is None or not adapter.is_lora):
            self._place(adapter)
        if adapter is None and self._peft is not None:
            with self._peft.disable_adapter():
                yield self._base
        elif adapter is None or (self._in_place and not adapter.is_lora):
            yield self._base
        elif self._merge or not adapter.is_lora:
            yield self._copy(adapter)
        else:
            yield self._beside(adapter)

    def _place(self, checkpoint: Adapter | None) -> None:
        """Have the base hold a full checkpoint's weights, or its own."""
        digest = checkpoint.digest if checkpoint else None
        if digest == self._placed:
            return
        self._own = self._own or {
            name: value.to("cpu", copy=True) for name, value in self._base.state_dict().items()
        }
        weights = self._own if checkpoint is None else self._read(checkpoint, "cpu").state_dict()
        self._base.load_state_dict(weights)
        self._placed = digest

    def _read(self, checkpoint: Adapter, device: str) -> PreTrainedModel:
        attention = self._base.config._attn_implementation
        return load_model(checkpoint.path, None, self._base.dtype, device, attention)

    def _copy(self, adapter: Adapter) -> PreTrainedModel:
        if adapter.digest in self._copies:
            self._copies.move_to_end(adapter.digest)
            return self._copies[adapter.digest]
        while len(self._copies) >= COPIES:
            self._copies.popitem(last=False)
        if adapter.is_lora:
            with naming(adapter):
                peft = PeftModel.from_pretrained(copy.deepcopy(self._base), str(adapter.path))
                model: PreTrainedModel = peft.merge_and_unload()
        else:
            model = self._read(adapter, str(self._base.device))
        pack(model, any_place=self._any_place)
        self._copies[adapter.digest] = model
        return model

    def _beside(self, adapter: Adapter) -> PreTrainedModel:
        name = re.sub(r"\W", "_", adapter.digest)  # names of modules hold no dots
        if name not in self._loaded:
            # Without peft's cast to float32, each layer computes in the weights' own dtype.
            options: dict[str, Any] = {
                "adapter_name": name,
                "is_trainable": False,
                "autocast_adapter_dtype": False,
            }
            with naming(adapter):
                if self._peft is None:
                    self._peft = PeftModel.from_pretrained(self._base, str(adapter.path), **options)
                else:
                    self._peft.load_adapter(str(adapter.path), **options)
            for label, weight in self._peft.named_parameters():
                if f".{name}." in label:
                    weight.data = weight.data.to(self._base.dtype)
        assert self._peft is not None
        self._loaded[name] = None
        self._loaded.move_to_end(name)
        self._peft.set_adapter(name, inference_mode=True)
        while len(self._loaded) > ADAPTERS:
            self._peft.delete_adapter(self._loaded.popitem(last=False)[0])
        return self._base


@contextmanager
def naming(adapter: Adapter) -> Iterator[None]:
    """Turn what peft raises over a broken or incompatible adapter into an error that names the adapter."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RequestError(
            f"adapter {adapter.version} at {adapter.path} can't be loaded: {reason}"
        ) from error
