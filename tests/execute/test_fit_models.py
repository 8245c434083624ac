"""Models of transformers under `fit`: generation, and a slice of ten architectures."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:Dynamo detected a call to a `functools.lru_cache`-wrapped function:UserWarning",
)

from torch.utils._pytree import tree_leaves  # noqa: E402

import loadmaster  # noqa: E402
from fit_cases import QUICK, gradients, session_of  # noqa: E402
from loadmaster.search.solver import Budget  # noqa: E402

BRIEF = {**QUICK, "search": Budget(evaluations=2)}

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 256,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}
IMAGE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", TEXT),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", TEXT),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 256}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4, "vocab_size": 256}
        | {"decoder_start_token_id": 0, "pad_token_id": 0},
    ),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {"hidden_size": 64, "state_size": 8, "num_hidden_layers": 1, "vocab_size": 256},
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", {**IMAGE, "image_size": 32, "patch_size": 8}),
    "convnext": (
        "ConvNextConfig",
        "ConvNextForImageClassification",
        {"hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2, "image_size": 32},
    ),
    "resnet": (
        "ResNetConfig",
        "ResNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [64, 128], "depths": [1, 1]},
    ),
}
"""Name -> class of the config, class of the model, sizes."""
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate")
DROPOUTS += ("resid_pdrop", "embd_pdrop", "attn_pdrop")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def built(name: str) -> tuple[Any, dict[str, Any]]:
    """A model with random weights, and inputs with labels."""
    config_class, model_class, sizes = MODELS[name]
    config = getattr(transformers, config_class)(**sizes)
    for dropout in DROPOUTS:
        if hasattr(config, dropout):
            setattr(config, dropout, 0.0)
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(config)
    if "Image" in model_class:
        return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    words = torch.arange(32).reshape(2, 16) + 5
    return model, {"input_ids": words, "labels": words}


def close(found: Any, wanted: Any) -> bool:
    """Within 1e-5 of the largest value."""
    pairs = list(zip(tensors(found), tensors(wanted), strict=True))
    largest = max((float(theirs.abs().max()) for _, theirs in pairs), default=1.0)
    return bool(pairs) and all(float((a - b).abs().max()) <= 1e-5 * largest for a, b in pairs)


def tensors(values: Any) -> list[Any]:
    return [
        each.detach().float()
        for each in tree_leaves(values)
        if isinstance(each, torch.Tensor) and each.numel()
    ]


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture_gives_what_it_gave_in_three_quarters_of_its_memory(name: str) -> None:
    plain, inputs = built(name)
    model = copy.deepcopy(plain).eval()
    plain.eval()
    given = {key: value for key, value in inputs.items() if key != "labels" or name == "t5"}
    with torch.no_grad():
        wanted = plain(**given, return_dict=False)[:2]
        loadmaster.fit(model, (), {**given, "return_dict": False}, memory="75%", **BRIEF)
        found = model(**given, return_dict=False)[:2]
    assert close(found[0], wanted[0])
    assert session_of(model).graphs
    assert len(session_of(model)._block) <= session_of(model).memory  # type: ignore[operator]


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_of_an_architecture(name: str) -> None:
    plain, inputs = built(name)
    model = copy.deepcopy(plain).train()
    plain.train()
    loadmaster.fit(model, (), inputs, memory="75%", **BRIEF)
    losses = []
    for each in (model, plain):
        loss = each(**inputs).loss
        loss.backward()
        losses.append(loss)
    assert close(losses[0], losses[1])
    mine, theirs = gradients(model), gradients(plain)
    assert {key for key in mine if mine[key] is None} == {key for key in theirs if theirs[key] is None}
    assert close(mine, theirs)


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_generation_says_the_same_words(cache: str | None) -> None:
    plain, inputs = built("llama")
    plain.eval()
    plain.generation_config.pad_token_id = 0
    words = inputs["input_ids"]
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    model = copy.deepcopy(plain)
    loadmaster.fit(model, memory="16MiB", **BRIEF)
    session_of(model).state_least = 1024
    chosen = {} if cache is None else {"cache_implementation": cache}
    wanted = plain.generate(words, **options)
    for _ in range(2):
        assert torch.equal(model.generate(words, **options, **chosen), wanted)
    assert len(session_of(model).graphs) <= 4, "no plan for every token"
    assert not session_of(model).states, "caches of a generation end with it"
    several = [words.roll(shift, 1) for shift in range(4)]
    alone = [plain.generate(each, **options) for each in several]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: model.generate(each, **options, **chosen), several))
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))


def test_drafts_are_cut_out_of_a_cache_that_grows() -> None:
    plain, inputs = built("llama")
    plain.eval()
    plain.generation_config.pad_token_id = 0
    words = inputs["input_ids"][:1]
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    model = loadmaster.fit(copy.deepcopy(plain), memory="16MiB", **BRIEF)
    chosen = transformers.GenerationConfig(prompt_lookup_num_tokens=2, pad_token_id=0, **options)
    wanted = plain.generate(words, **options)
    assert torch.equal(model.generate(words, prompt_lookup_num_tokens=2, **options), wanted)
    assert torch.equal(model.generate(words, chosen), wanted)
    assert torch.equal(plain.generate(words, assistant_model=model, **options), wanted)
