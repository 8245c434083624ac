"""`generate` of transformers under `fit`: with caches of one size, as one that grows needs a plan for every token.

A cache that a caller has from turn to turn grows all the same: for the time of a generation one of one size stands for
it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from loadmaster.errors import require

_LEAST_STEP = 32
"""Words: sizes of caches are whole multiples of it, or of an eighth of the power of two above them."""


def with_fixed_caches(model: Any) -> Callable[..., Any]:
    """The `generate` of a fitted model."""
    plain = model.generate

    @functools.wraps(plain)
    def generate(*args: Any, **kwargs: Any) -> Any:
        session = model.fitted.session
        if session.is_forked:
            return plain(*args, **kwargs)
        given = args[1] if len(args) > 1 else kwargs.get("generation_config")
        config = given or model.generation_config

        def option(name: str) -> Any:
            return getattr(config, name, None) if kwargs.get(name) is None else kwargs[name]

        # Words of a draft that are not accepted are taken out of a cache: one of one size can't be cut.
        drafting = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "is_assistant")
        drafts = any(option(name) for name in drafting)
        # PEFT's learned prompts take none of one size.
        learned = getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
        own = drafts or learned or option("cache_implementation") or option("use_cache") is False
        own = own or option("output_attentions")  # they would be as long as the cache
        fixed = not own and getattr(
            model, "_can_compile_fullgraph", getattr(model, "_supports_static_cache", False)
        )
        past = kwargs.get("past_key_values")
        if fixed and past is None:
            kwargs["cache_implementation"] = "static"
        beams = option("num_beams") not in (None, 1)  # they are put in another order on the host
        repeated = beams or option("num_return_sequences") not in (None, 1)
        caches = Caches(model, convert=fixed and past is not None and not repeated)
        parts = model.fitted.with_parts(_called_by_generate(model))
        inside = option("output_hidden_states") or option("output_attentions")  # they would be longer as well
        prompts = nullcontext() if inside else padded_prompts(caches.own)
        with session.generation(keeps_caches=not beams), parts, caches.prepared(), prompts:
            found = plain(*args, **kwargs)
        if fixed:
            caches.give_back(found)
        return found

    return generate


class Caches:
    """The caches of one generation: sizes that come again, so that plans do; and what the caller has of them."""

    def __init__(self, model: Any, *, convert: bool) -> None:
        self._model, self._convert = model, convert
        self.own: Any = next((each for each in model.modules() if _generates(each)), None)
        self._past: Any = None
        self._fixed: Any = None

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """While transformers makes a cache, or takes the caller's."""
        own = self.own
        plain: Any = getattr(own, "_prepare_cache_for_generation", None)
        names = inspect.signature(plain).parameters if callable(plain) else ()
        if not {"generation_config", "model_kwargs", "max_cache_length"} <= set(names):
            yield
            return

        def prepare(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(plain).bind(*args, **kwargs)
            options, length = given.arguments["generation_config"], given.arguments["max_cache_length"]
            size = rounded_up(int(length))
            if getattr(options, "max_cache_len", 0) is None:
                options.max_cache_len = size
            inputs = given.arguments["model_kwargs"]
            if self._convert:
                past = inputs.get("past_key_values")
                self._fixed = fixed_cache(past, size, own.config, self._model.fitted.session.home)
                if self._fixed is not None:
                    self._past, inputs["past_key_values"] = past, self._fixed
            return plain(*given.args, **given.kwargs)

        own._prepare_cache_for_generation = prepare
        try:
            yield
        finally:
            del own._prepare_cache_for_generation

    def give_back(self, found: Any) -> None:
        """Let the caller's cache, and the one in the results, be such as it is without `fit`."""
        fixed = getattr(found, "past_key_values", None)
        if self._past is not None:
            fill_growing(self._past, self._fixed)
            if fixed is not None:
                found.past_key_values = self._past
        elif fixed is not None and self.own is not None:
            found.past_key_values = growing_cache(fixed, self.own.config)


_TEXT = frozenset(
    ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "return_dict")
)
"""All that a model is given with a prompt of words alone."""


@contextmanager
def padded_prompts(own: Any) -> Iterator[None]:
    """While a model reads prompts: behind each come so many words more that there is a graph for a few lengths, not for
    every one. No word sees those that come later, and the cache forgets them."""
    plain: Any = getattr(own, "_prefill", None)
    names = inspect.signature(plain).parameters if callable(plain) else ()
    if list(names)[:3] != ["input_ids", "generation_config", "model_kwargs"]:
        yield
        return

    def read(input_ids: Any, generation_config: Any, model_kwargs: dict[str, Any], **options: Any) -> Any:
        prompt = _prompt(input_ids, model_kwargs, own.config)
        if prompt is None or getattr(generation_config, "prefill_chunk_size", None) is not None:
            return plain(input_ids, generation_config, model_kwargs, **options)
        words, given = _with_more(input_ids, model_kwargs, prompt)
        found = plain(words, generation_config, given, **options)
        if found.logits.shape[1] == prompt.new + prompt.more:
            found.logits = found.logits[:, : prompt.new]
        for layer in model_kwargs["past_key_values"].layers:
            _count(layer, prompt.past + prompt.new)
        return found

    own._prefill = read
    try:
        yield
    finally:
        del own._prefill


class _Prompt(NamedTuple):
    """How many words a cache has seen, how many are read now, and how many come behind those."""

    past: int
    new: int
    more: int


def _prompt(input_ids: Any, given: Mapping[str, Any], config: Any) -> _Prompt | None:
    """None: there is something else than words, a layer that forgets nothing, or no room behind them."""
    from transformers import cache_utils as kinds

    cache: Any = given.get("past_key_values")
    mask = given.get("attention_mask")
    plain = set(given) <= _TEXT and input_ids.ndim == 2 and (mask is None or mask.ndim == 2)
    forgetful = (kinds.StaticLayer, kinds.StaticSlidingWindowLayer)
    if not plain or type(cache) is not kinds.StaticCache:
        return None
    if any(type(each) not in forgetful or not hasattr(each, "cumulative_length") for each in cache.layers):
        return None
    past, length = int(cache.get_seq_length()), int(input_ids.shape[1])
    if past and mask is None:
        return None  # whether those are all words or the new ones alone is not known
    new = length - past if mask is None or mask.shape[1] == length else length
    most = [each.max_cache_len for each in cache.layers]  # what a window has lost does not come back
    most += [getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or most[0]]
    more = min(rounded_up(new), min(most) - past) - new
    return _Prompt(past, new, more) if new > 1 and more > 0 else None


def _with_more(input_ids: Any, given: Mapping[str, Any], prompt: _Prompt) -> tuple[Any, dict[str, Any]]:
    """Words, and what comes with them, with more behind."""
    torch, found = require("torch", "torch"), dict(given)

    def longer(value: Any, last: Any) -> Any:
        return torch.cat([value, last.expand(*value.shape[:-1], prompt.more)], -1)

    mask, places, keep = (given.get(name) for name in ("attention_mask", "position_ids", "logits_to_keep"))
    if mask is not None:
        found["attention_mask"] = longer(mask, torch.zeros_like(mask[..., -1:]))
    if places is not None:
        found["position_ids"] = longer(places, places[..., -1:])
    if isinstance(keep, int) and keep:
        found["logits_to_keep"] = torch.arange(prompt.new - keep, prompt.new, device=input_ids.device)
    return longer(input_ids, input_ids[..., -1:]), found


def rounded_up(length: int) -> int:
    """A size of a cache: four to eight of them between powers of two."""
    step = max(_LEAST_STEP, 1 << max(0, length.bit_length() - 3))
    return -(-length // step) * step


def fixed_cache(past: Any, size: int, config: Any, device: Any) -> Any:
    """One of one size with what is in a cache that grows; None: it is no such."""
    torch = require("torch", "torch")
    from transformers import cache_utils as kinds

    counts = hasattr(kinds.StaticLayer(1), "cumulative_length")  # since transformers 5
    if type(past) is not kinds.DynamicCache or past.offloading or not counts:
        return None
    config = config.get_text_config(decoder=True)
    if not past.layers:
        past.layers[:] = kinds.DynamicCache(config=config).layers
    with torch.inference_mode(False), torch.no_grad():
        found, layers = kinds.StaticCache(config=config, max_cache_len=size), []
        for layer in past.layers:
            if getattr(layer, "record_past", False):
                return None
            if type(layer) is kinds.DynamicLayer:
                layers.append(kinds.StaticLayer(size))
            elif type(layer) is kinds.DynamicSlidingWindowLayer:
                layers.append(kinds.StaticSlidingWindowLayer(size, sliding_window=layer.sliding_window))
            elif getattr(layer, "is_compileable", False):
                layers.append(layer)  # it has one size
                continue
            else:
                return None
            count = layer.get_seq_length()
            if count:
                _fill(layers[-1], layer, count, device)
        found.layers[:] = layers
    return found


def _fill(fixed: Any, layer: Any, count: int, device: Any) -> None:
    """Put what a layer that grows has seen into one of one size."""
    keys, values = layer.keys.to(device), layer.values.to(device)
    _initialize(fixed, keys, values)
    there = keys.shape[-2]
    # A window that is full has its last words at its end.
    begin = 0 if count < fixed.max_cache_len else fixed.max_cache_len - there
    fixed.keys.narrow(-2, begin, there).copy_(keys)
    fixed.values.narrow(-2, begin, there).copy_(values)
    _count(fixed, count)


def _initialize(layer: Any, keys: Any, values: Any) -> None:
    """Let a layer make its tensors for such; before transformers 5 it asks for keys alone."""
    names = inspect.signature(layer.lazy_initialization).parameters
    layer.lazy_initialization(*(keys, values)[: len(names)])


def _count(layer: Any, seen: int) -> None:
    """Let a layer of one size have seen so many words."""
    layer.cumulative_length.fill_(seen)
    if hasattr(layer, "cumulative_length_int"):
        layer.cumulative_length_int = seen


def growing_cache(fixed: Any, config: Any) -> Any:
    """What is in a cache of one size, as one that grows; another cache as it is."""
    from transformers import cache_utils as kinds

    if type(fixed) is kinds.EncoderDecoderCache:
        parts = (fixed.self_attention_cache, fixed.cross_attention_cache)
        return kinds.EncoderDecoderCache(*(growing_cache(each, config) for each in parts))
    if type(fixed) is not kinds.StaticCache:
        return fixed
    found = kinds.DynamicCache(config=config.get_text_config(decoder=True))
    return found if fill_growing(found, fixed) else fixed


def fill_growing(past: Any, fixed: Any) -> bool:
    """Put what a cache of one size has into one that grows; False: it has layers of another kind."""
    from transformers import cache_utils as kinds

    pairs = list(zip(past.layers, fixed.layers, strict=False))
    growing = (kinds.DynamicLayer, kinds.DynamicSlidingWindowLayer)
    if len(past.layers) != len(fixed.layers) or any(
        type(layer) not in growing and type(layer) is not type(other) for layer, other in pairs
    ):
        return False
    for at, (layer, other) in enumerate(pairs):
        if type(layer) not in growing:
            past.layers[at] = other
        elif other.is_initialized:
            _grow(layer, other)
    return True


def _grow(layer: Any, fixed: Any) -> None:
    count = int(fixed.get_seq_length())
    there = min(count, fixed.max_cache_len)
    kept = min(there, getattr(layer, "sliding_window", there + 1) - 1)
    device = layer.device if layer.is_initialized else fixed.keys.device
    keys = fixed.keys.narrow(-2, there - kept, kept).to(device, copy=True)
    values = fixed.values.narrow(-2, there - kept, kept).to(device, copy=True)
    if not layer.is_initialized:
        _initialize(layer, keys, values)
    layer.keys, layer.values = keys, values
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length = count


def _called_by_generate(model: Any) -> list[Any]:
    """What `generate` of transformers may call by itself: the model that a wrapper (PEFT's) has inside, an encoder, what
    makes words of images, and their first layers."""
    torch = require("torch", "torch")
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
    models = [each for each in model.modules() if _is_pretrained(each)]
    parts = [*models, *(layer for each in models for layer in each.children())]
    return [each for each in dict.fromkeys(parts) if each is not model and not isinstance(each, containers)]


def _is_pretrained(module: Any) -> bool:
    return any(each.__name__ == "PreTrainedModel" for each in type(module).__mro__)


def _generates(module: Any) -> bool:
    return any(each.__name__ == "GenerationMixin" for each in type(module).__mro__)
