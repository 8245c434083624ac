"""`generate` of transformers under `fit`: caches of one size, those that callers have from turn to turn, and what is
called beside the model."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Dynamo detected a call to a `functools.lru_cache`-wrapped function:UserWarning"
)

from transformers import cache_utils  # noqa: E402

import loadmaster  # noqa: E402
from fit_cases import QUICK, same, session_of  # noqa: E402
from loadmaster.execute.generation import fill_growing, fixed_cache, rounded_up  # noqa: E402
from loadmaster.execute.module_calls import Calls  # noqa: E402
from loadmaster.search.solver import Budget  # noqa: E402

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
WINDOW = 6
GREEDY: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def built(name: str = "Llama", **options: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(
        **{**TEXT, **options}, pad_token_id=0, bos_token_id=1, eos_token_id=None
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def pair(plain: Any) -> tuple[Any, Any]:
    options = {**QUICK, "search": Budget(evaluations=2)}
    return plain, loadmaster.fit(copy.deepcopy(plain), memory="16MiB", **options)


def words(count: int, rows: int = 1) -> Any:
    return torch.arange(rows * count).reshape(rows, count) + 5


@pytest.mark.parametrize(
    "layers", [("Mistral", {}), ("Gemma2", {"layer_types": ["sliding_attention", "full_attention"]})]
)
def test_a_window_that_moves_makes_no_plan_for_every_word(layers: tuple[str, dict[str, Any]]) -> None:
    name, options = layers
    plain, model = pair(built(name, sliding_window=WINDOW, **options))
    padded = words(4, 2)
    padded[0, :2] = 0
    given = {"input_ids": padded, "attention_mask": (padded != 0).long()}
    for count in (4, 9):
        chosen = {"max_new_tokens": count, "do_sample": False}
        assert torch.equal(model.generate(**given, **chosen), plain.generate(**given, **chosen))
    assert len(session_of(model).graphs) == 3, "words before it is full, words behind that, and the prompt"


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@pytest.mark.parametrize("given", [False, True])
def test_a_cache_is_handed_on_from_turn_to_turn(name: str, given: bool) -> None:
    plain, model = pair(built(name, **({} if name == "Llama" else {"sliding_window": WINDOW})))
    answers, caches = [], []
    for each in (plain, model):
        past = cache_utils.DynamicCache(config=each.config) if given else None
        own, prompt, said = past, words(3), []
        for turn in range(3):
            found = each.generate(prompt, past_key_values=past, return_dict_in_generate=True, **GREEDY)
            past = found.past_key_values
            assert own is None or past is own
            said.append(found.sequences)
            prompt = torch.cat([found.sequences, torch.tensor([[9, 10 + turn]])], 1)
        answers.append(said)
        caches.append(past)
    assert same(answers[0], answers[1])
    for mine, theirs in zip(caches[1].layers, caches[0].layers, strict=True):
        assert type(mine) is type(theirs)
        assert mine.get_seq_length() == theirs.get_seq_length()
        assert mine.keys.shape == theirs.keys.shape
        assert torch.allclose(mine.keys, theirs.keys, atol=1e-5)
        assert torch.allclose(mine.values, theirs.values, atol=1e-5)
    assert len(session_of(model).graphs) <= 7, "no plan for every word"


@pytest.mark.parametrize("kind", ["plain", "window", "few places"])
def test_prompts_of_many_lengths_have_a_few_graphs(kind: str) -> None:
    """The last lengths are beyond the window, or as long as there are places."""
    options = {"window": {"sliding_window": 40}, "few places": {"max_position_embeddings": 40}}.get(kind, {})
    name = "Mistral" if kind == "window" else "Llama"
    plain, model = pair(built(name, **{"max_position_embeddings": 128, **options}))
    lengths = [3, 7, 12, 20, 26, 31, 32, 33, 37]
    graphs: dict[tuple[int, bool], int] = {}
    for length, padded in itertools.product(lengths, (False, True)):
        ids = words(length, 2)
        mask = torch.ones_like(ids)
        if padded:
            mask[0, :2] = 0
        asked = {"attention_mask": mask, "max_new_tokens": 3, "do_sample": False}
        more = {"return_dict_in_generate": True, "output_logits": True}
        mine, theirs = model.generate(ids, **asked, **more), plain.generate(ids, **asked, **more)
        assert torch.equal(mine.sequences, theirs.sequences), length
        for one, other in zip(mine.logits, theirs.logits, strict=True):
            assert one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
        graphs[length, padded] = len(session_of(model).graphs)
    assert graphs[3, False] == 2, "one for prompts, one for words"
    assert graphs[3, True] == graphs[26, True] == 3, "one more for prompts of which something is left out"
    assert graphs[37, True] <= 10


def test_prompts_are_as_they_are_where_more_behind_them_would_be_seen() -> None:
    """In hidden states, and by layers that forget nothing."""
    plain, model = pair(built())
    asked = {"return_dict_in_generate": True, "output_hidden_states": True, **GREEDY}
    mine, theirs = model.generate(words(7), **asked), plain.generate(words(7), **asked)
    for one, other in zip(mine.hidden_states, theirs.hidden_states, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.shape == b.shape and torch.allclose(a, b, atol=1e-5)
    config = transformers.Mamba2Config(
        vocab_size=256,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=1,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    plain, model = pair(transformers.Mamba2ForCausalLM(config).eval())
    for length in (5, 9):
        assert torch.equal(model.generate(words(length), **GREEDY), plain.generate(words(length), **GREEDY))


@pytest.mark.parametrize("count", [1, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW])
@pytest.mark.parametrize("size", [WINDOW, 32])
def test_caches_become_such_of_one_size_and_back(count: int, size: int) -> None:
    config = built("Gemma2", sliding_window=WINDOW).config
    size = max(size, count + 2)

    def step(cache: Any, length: int, seed: int) -> Any:
        torch.manual_seed(seed)
        states = torch.randn(2, 1, 2, length, 16)
        return [cache.update(states[0], states[1], layer) for layer in range(2)]

    past, other = (cache_utils.DynamicCache(config=config) for _ in range(2))
    for each in (past, other):
        step(each, count, 0)
    fixed = fixed_cache(past, size, config, torch.device("cpu"))
    for each in (fixed, other):
        step(each, 1, 1)
    assert fill_growing(past, fixed)
    for mine, theirs in zip(past.layers, other.layers, strict=True):
        assert mine.get_seq_length() == theirs.get_seq_length() == count + 1
        assert torch.equal(mine.keys, theirs.keys) and torch.equal(mine.values, theirs.values)
    assert same(step(past, 1, 2), step(other, 1, 2))


def test_prompts_of_many_lengths_share_what_makes_words() -> None:
    plain, model = pair(built())
    for count, new in ((3, 4), (5, 4), (3, 9), (5, 20)):
        options = {"max_new_tokens": new, "do_sample": False}
        assert torch.equal(model.generate(words(count), **options), plain.generate(words(count), **options))
    assert len(session_of(model).graphs) == 2, "one for prompts, and one for words"
    sizes = {rounded_up(length) for length in range(1, 4097)}
    assert all(length <= rounded_up(length) <= max(length + 31, length * 1.25) for length in range(1, 4097))
    assert len(sizes) < 40


def test_attentions_are_as_long_as_what_was_said() -> None:
    plain = built()
    plain.set_attn_implementation("eager")
    plain, model = pair(plain)
    options = {"output_attentions": True, "return_dict_in_generate": True, "max_new_tokens": 2}
    found, wanted = (each.generate(words(3), do_sample=False, **options) for each in (model, plain))
    shapes = [[each.shape for step in these.attentions for each in step] for these in (found, wanted)]
    assert shapes[0] == shapes[1]


def _llava() -> Any:
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**vision, image_size=16, patch_size=8, projection_dim=32),
        image_token_index=250,
        image_seq_length=4,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.generation_config.pad_token_id = 0
    return model


def test_what_makes_words_of_images_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _llava()
    inputs = {
        "input_ids": torch.tensor([[5, 250, 250, 250, 250, 7]]),
        "pixel_values": torch.randn(1, 3, 16, 16),
    }
    model = copy.deepcopy(plain)
    loadmaster.fit(model, (), inputs, memory="16MiB", **{**QUICK, "search": Budget(evaluations=2)})
    planned: set[str] = set()
    own = Calls._called

    def spy(self: Calls, *args: Any, **options: Any) -> Any:
        planned.add(type(self.module).__name__)
        return own(self, *args, **options)

    monkeypatch.setattr(Calls, "_called", spy)
    assert torch.equal(model.generate(**inputs, **GREEDY), plain.generate(**inputs, **GREEDY))
    assert {"CLIPVisionModel", "LlavaMultiModalProjector"} <= planned
    assert not any("_compiled_call_impl" in vars(each) for each in model.modules() if each is not model)


def test_hidden_states_are_collected_once() -> None:
    plain = built()
    inputs = {"input_ids": words(3), "output_hidden_states": True}
    model = copy.deepcopy(plain)
    loadmaster.fit(model, (), inputs, memory="75%", **{**QUICK, "search": Budget(evaluations=2)})
    with torch.no_grad():
        for _ in range(2):
            found, wanted = model(**inputs).hidden_states, plain(**inputs).hidden_states
            assert len(found) == len(wanted)
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))
