"""Other people's models for `benchmarks/fit_peers.py`, at sizes that need 6 to 16 GiB with everything resident.

    spec = MODELS["llama_prefill"]
    module, inputs = spec.build(tiny=False), spec.inputs(tiny=False)   # on the CPU, weights not touched
    weights = HostWeights(module)                                      # one buffer, filled
    weights.pin()

Architectures are transformers' and diffusers' own; weights are random and made without anybody's slow initialisation.
Where `layers` says 16 of 32, the rest is left out to save time on the device.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_BLOCK = 4_194_301
"""Random numbers that weights repeat: no multiple of any row, so that no two rows are equal."""
_SPREAD = 0.02 * math.sqrt(3)
_ALIGN = 256


@dataclass(frozen=True)
class Guess:
    """What a dry run assumes."""

    weight_gib: float
    resident_gib: float
    pass_ms: float
    compile_s: float = 25.0


@dataclass(frozen=True)
class Spec:
    """One model: how to make it and its inputs."""

    name: str
    family: str
    """The module in which the class is."""
    model: str
    """Name of the class."""
    config: str
    """Name of the configuration's class; empty: arguments go to the model itself."""
    sizes: Mapping[str, Any]
    tiny_sizes: Mapping[str, Any]
    make_inputs: Callable[[bool, torch.Generator], dict[str, torch.Tensor]]
    guess: Guess
    training: bool = False
    split: bool = True
    """The batch may be computed in parts."""
    cache: tuple[int, int] = (0, 0)
    """Batch and length of a static cache; the model then makes one token."""
    tiny_cache: tuple[int, int] = (2, 16)
    note: str = ""

    def load(self) -> tuple[Any, Any]:
        """The classes of the model and of its configuration."""
        library = importlib.import_module(self.family)
        return getattr(library, self.model), getattr(library, self.config) if self.config else None

    def build(self, *, tiny: bool, cache_device: Any = "cpu") -> Any:
        """A module on the CPU whose weights are not touched yet: no memory is taken."""
        model, config = self.load()
        sizes = dict(self.tiny_sizes if tiny else self.sizes)
        with without_init():
            module = model(config(**sizes)) if config is not None else model(**sizes)
            if self.cache[0]:
                module = with_cache(module, *(self.tiny_cache if tiny else self.cache), cache_device)
        module.train(self.training)
        return module.requires_grad_(self.training)

    def inputs(self, *, tiny: bool) -> dict[str, torch.Tensor]:
        """On the CPU, the same every time."""
        return self.make_inputs(tiny, torch.Generator().manual_seed(7))


@contextmanager
def without_init() -> Iterator[None]:
    """Modules are made in bfloat16 and leave their weights as memory happens to be."""
    import transformers

    base: Any = transformers.PreTrainedModel
    initial = torch.nn.init
    kept = {
        name: each
        for name, each in vars(initial).items()
        if callable(each) and name.endswith("_") and not name.startswith("_")
    }
    whole = base.initialize_weights
    dtype = torch.get_default_dtype()
    for name in kept:
        setattr(initial, name, lambda tensor, *_args, **_options: tensor)
    base.initialize_weights = lambda self, *_args, **_options: None
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        base.initialize_weights = whole
        for name, each in kept.items():
            setattr(initial, name, each)


def with_cache(module: Any, batch: int, length: int, device: Any) -> Any:
    """transformers' own module for one token with a static cache, whose keys and values are its buffers."""
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    module.config.use_cache = True
    module.generation_config.use_cache = True
    module.generation_config.cache_implementation = "static"
    return TorchExportableModuleWithStaticCache(
        module, batch_size=batch, max_cache_len=length, device=torch.device(device)
    )


def random_block(device: Any) -> torch.Tensor:
    """The same numbers on every device."""
    made = torch.empty(_BLOCK, dtype=torch.float32)
    made.uniform_(-_SPREAD, _SPREAD, generator=torch.Generator().manual_seed(11))
    return made.to(torch.bfloat16).to(device)


def unique_parameters(module: Any) -> list[tuple[str, Any]]:
    """Shared ones once."""
    return list(module.named_parameters(remove_duplicate=True))


def parameter_bytes(module: Any) -> int:
    return sum(p.numel() * p.element_size() for _, p in unique_parameters(module))


def fill(name: str, tensor: torch.Tensor, block: torch.Tensor) -> None:
    """Norms 1, biases 0, scales of layers 0.1, all else from the block."""
    if tensor.dim() < 2:
        tensor.fill_(0.0 if name.endswith("bias") else 0.1 if "layer_scale" in name else 1.0)
        return
    flat, size = tensor.view(-1), block.numel()
    whole = flat.numel() // size
    if whole:
        flat[: whole * size].view(whole, size).copy_(block.expand(whole, size))
    if flat.numel() > whole * size:
        flat[whole * size :].copy_(block[: flat.numel() - whole * size])


def to_device(module: Any, device: Any) -> Any:
    """Weights made on the device itself, buffers moved there."""
    block = random_block(device)
    with torch.no_grad():
        for name, parameter in unique_parameters(module):
            made = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            fill(name, made, block)
            parameter.data = made
    return buffers_to(module, device)


def buffers_to(module: Any, device: Any) -> Any:
    """In place: who else refers to a buffer sees it move."""
    for buffer in module.buffers():
        if buffer.device != torch.device(device):
            buffer.data = buffer.data.to(device)
    return module


class HostWeights:
    """A module's weights in one buffer of the host, for as many modules of the same model as there come."""

    def __init__(self, module: Any) -> None:
        named = unique_parameters(module)
        self.places: dict[str, tuple[int, int]] = {}
        end = 0
        for name, parameter in named:
            self.places[name] = end, parameter.numel() * parameter.element_size()
            end += -(-self.places[name][1] // _ALIGN) * _ALIGN
        self.buffer = torch.empty(end, dtype=torch.uint8)
        block = random_block("cpu")
        self.bind(module)
        with torch.no_grad():
            for name, parameter in named:
                fill(name, parameter.data, block)

    def bind(self, module: Any) -> Any:
        """Give a module these weights."""
        for name, parameter in unique_parameters(module):
            begin, size = self.places[name]
            parameter.data = self.buffer[begin : begin + size].view(parameter.dtype).view(parameter.shape)
        return module

    def pin(self) -> str:
        """Lock the pages; how it was done."""
        result = torch.cuda.cudart().cudaHostRegister(self.buffer.data_ptr(), self.buffer.numel(), 0)
        if int(result) == 0 and self.buffer.is_pinned():
            return "registered"
        self.buffer = self.buffer.pin_memory()
        return "copied"


def _tokens(vocab: int, batch: int, length: int, tiny: tuple[int, int] = (4, 16), **more: Any) -> Any:
    def make(small: bool, generator: torch.Generator) -> dict[str, torch.Tensor]:
        shape, words = (tiny, 100) if small else ((batch, length), vocab)
        ids = torch.randint(0, words, shape, generator=generator)
        found = {"input_ids": ids}
        if more.get("labels"):
            found["labels"] = ids.clone()
        return found

    return make


def _one_token(vocab: int, batch: int, position: int) -> Any:
    def make(small: bool, generator: torch.Generator) -> dict[str, torch.Tensor]:
        rows, words, place = (2, 100, 8) if small else (batch, vocab, position)
        ids = torch.randint(0, words, (rows, 1), generator=generator)
        return {"input_ids": ids, "cache_position": torch.tensor([place])}

    return make


def _pair(vocab: int, batch: int, source: int, target: int, *, labels: bool = False) -> Any:
    def make(small: bool, generator: torch.Generator) -> dict[str, torch.Tensor]:
        rows, words, long, short = (4, 100, 16, 8) if small else (batch, vocab, source, target)
        found = {"input_ids": torch.randint(2, words, (rows, long), generator=generator)}
        found["labels" if labels else "decoder_input_ids"] = torch.randint(
            2, words, (rows, short), generator=generator
        )
        return found

    return make


def _images(batch: int, side: int, tiny: tuple[int, int], *, classes: int = 0) -> Any:
    def make(small: bool, generator: torch.Generator) -> dict[str, torch.Tensor]:
        rows, size = tiny if small else (batch, side)
        found = {"pixel_values": torch.randn(rows, 3, size, size, generator=generator).bfloat16()}
        if classes:
            found["labels"] = torch.randint(0, 2 if small else classes, (rows,), generator=generator)
        return found

    return make


def _speech(batch: int, mels: int, frames: int) -> Any:
    def make(small: bool, generator: torch.Generator) -> dict[str, torch.Tensor]:
        shape = (4, 8, 32) if small else (batch, mels, frames)
        return {"input_features": torch.randn(*shape, generator=generator).bfloat16()}

    return make


def _latents(batch: int, side: int, words: int) -> Any:
    def make(small: bool, generator: torch.Generator) -> dict[str, torch.Tensor]:
        rows, size, length, wide, pooled = (2, 8, 6, 32, 16) if small else (batch, side, words, 4096, 2048)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).bfloat16()

        return {
            "hidden_states": normal(rows, 16, size, size),
            "encoder_hidden_states": normal(rows, length, wide),
            "pooled_projections": normal(rows, pooled),
            "timestep": torch.full((rows,), 500.0).bfloat16(),
        }

    return make


_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "use_cache": False,
}
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "use_cache": False,
}
_TINY_ENCODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_BERT = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_T5 = {"vocab_size": 32128, "dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0}
_TINY_T5 = {
    **_T5,
    "vocab_size": 128,
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_heads": 4,
    "num_layers": 2,
    "num_decoder_layers": 2,
}

_ALL = (
    Spec(
        "llama_prefill",
        "transformers",
        "LlamaForCausalLM",
        "LlamaConfig",
        _LLAMA,
        _TINY,
        _tokens(32000, 4, 1024),
        Guess(6.5, 7.3, 60),
        note="Llama-7B, 16 of 32 layers, 4 x 1,024 tokens",
    ),
    Spec(
        "llama_decode",
        "transformers",
        "LlamaForCausalLM",
        "LlamaConfig",
        _LLAMA,
        _TINY,
        _one_token(32000, 8, 1000),
        Guess(6.5, 8.6, 15),
        split=False,
        cache=(8, 1024),
        note="Llama-7B, 16 of 32 layers, one token for 8 sequences of 1,000, static cache",
    ),
    Spec(
        "qwen2_prefill",
        "transformers",
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {
            **_LLAMA,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "num_hidden_layers": 14,
            "vocab_size": 152064,
        },
        _TINY,
        _tokens(152064, 4, 1024),
        Guess(8.1, 9.8, 65),
        note="Qwen2-7B, 14 of 28 layers, 4 x 1,024 tokens",
    ),
    Spec(
        "mistral_long",
        "transformers",
        "MistralForCausalLM",
        "MistralConfig",
        {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": None},
        {**_TINY, "sliding_window": None},
        _tokens(32000, 1, 4096, tiny=(1, 16)),
        Guess(7.0, 7.8, 65),
        split=False,
        note="Mistral-7B, 16 of 32 layers, 1 x 4,096 tokens",
    ),
    Spec(
        "t5_3b",
        "transformers",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            **_T5,
            "d_model": 1024,
            "d_ff": 16384,
            "d_kv": 128,
            "num_heads": 32,
            "num_layers": 24,
            "num_decoder_layers": 24,
        },
        _TINY_T5,
        _pair(32128, 16, 512, 64),
        Guess(5.3, 6.6, 90),
        note="T5-3B, 16 x 512 in, 16 x 64 out",
    ),
    Spec(
        "sd3",
        "diffusers",
        "SD3Transformer2DModel",
        "",
        {
            "sample_size": 128,
            "num_layers": 20,
            "attention_head_dim": 64,
            "num_attention_heads": 38,
            "joint_attention_dim": 4096,
            "caption_projection_dim": 2432,
            "pooled_projection_dim": 2048,
            "pos_embed_max_size": 96,
            "qk_norm": "rms_norm",
        },
        {
            "sample_size": 8,
            "num_layers": 4,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 16,
            "pos_embed_max_size": 8,
            "qk_norm": "rms_norm",
        },
        _latents(2, 128, 333),
        Guess(8.0, 9.0, 90),
        note="Stable Diffusion 3.5 large, 20 of 38 blocks, one step of 2 images of 1,024 x 1,024",
    ),
    Spec(
        "vit_e",
        "transformers",
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 1792,
            "intermediate_size": 15360,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "patch_size": 14,
            "image_size": 224,
        },
        {**_TINY_ENCODER, "patch_size": 8, "image_size": 32},
        _images(32, 224, (4, 32)),
        Guess(6.1, 6.7, 100),
        note="ViT-e, 48 of 56 layers, 32 images",
    ),
    Spec(
        "mixtral",
        "transformers",
        "MixtralForCausalLM",
        "MixtralConfig",
        {
            **_LLAMA,
            "hidden_size": 2048,
            "intermediate_size": 7168,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "num_hidden_layers": 10,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        {**_TINY, "num_local_experts": 4, "num_experts_per_tok": 2},
        _tokens(32000, 4, 1024),
        Guess(6.9, 7.9, 40),
        note="Mixtral of half its width, 10 layers of 8 experts, 4 x 1,024 tokens",
    ),
    Spec(
        "mamba",
        "transformers",
        "MambaForCausalLM",
        "MambaConfig",
        {
            "hidden_size": 4096,
            "intermediate_size": 8192,
            "state_size": 16,
            "num_hidden_layers": 24,
            "vocab_size": 65024,
            "use_cache": False,
        },
        {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 3, "vocab_size": 128, "use_cache": False},
        _tokens(65024, 16, 64, tiny=(4, 8)),
        Guess(5.2, 6.3, 150),
        note="Falcon-Mamba-7B, 24 of 64 layers, 16 x 64 tokens, without its CUDA kernels",
    ),
    Spec(
        "bert_large",
        "transformers",
        "BertModel",
        "BertConfig",
        _BERT,
        {**_TINY_ENCODER, "vocab_size": 128, "max_position_embeddings": 64},
        _tokens(30522, 512, 512),
        Guess(0.62, 6.5, 400),
        note="BERT-large, 512 x 512 tokens: activations, not weights, need the memory",
    ),
    Spec(
        "whisper",
        "transformers.models.whisper.modeling_whisper",
        "WhisperEncoder",
        "WhisperConfig",
        {
            "d_model": 1280,
            "encoder_layers": 32,
            "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "num_mel_bins": 128,
            "max_source_positions": 1500,
        },
        {
            "d_model": 32,
            "encoder_layers": 3,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 8,
            "max_source_positions": 16,
        },
        _speech(96, 128, 3000),
        Guess(1.2, 6.0, 500),
        note="Whisper large's encoder, 96 pieces of 30 s: activations need the memory",
    ),
    Spec(
        "regnet",
        "transformers",
        "RegNetForImageClassification",
        "RegNetConfig",
        {
            "depths": [2, 7, 17, 1],
            "hidden_sizes": [528, 1056, 2904, 7392],
            "groups_width": 264,
            "layer_type": "y",
        },
        {"embedding_size": 8, "depths": [1, 2, 2, 1], "hidden_sizes": [16, 16, 32, 32], "groups_width": 8},
        _images(96, 224, (4, 32)),
        Guess(1.2, 6.0, 300),
        note="RegNetY-128GF, 96 images: activations need the memory",
    ),
    Spec(
        "convnext_xl",
        "transformers",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"depths": [3, 3, 27, 3], "hidden_sizes": [256, 512, 1024, 2048]},
        {"depths": [1, 1, 3, 1], "hidden_sizes": [8, 16, 32, 64]},
        _images(256, 224, (4, 32)),
        Guess(0.65, 6.5, 250),
        note="ConvNeXt-XL, 256 images: activations need the memory",
    ),
    Spec(
        "gpt2_train",
        "transformers",
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 1024,
            "n_layer": 24,
            "n_head": 16,
            "vocab_size": 50257,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "use_cache": False,
        },
        {
            "n_embd": 64,
            "n_layer": 4,
            "n_head": 4,
            "n_positions": 64,
            "vocab_size": 128,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "use_cache": False,
        },
        _tokens(50257, 8, 1024, labels=True),
        Guess(0.66, 14, 160, 50),
        training=True,
        note="GPT-2 medium, 8 x 1,024 tokens",
    ),
    Spec(
        "bert_train",
        "transformers",
        "BertForMaskedLM",
        "BertConfig",
        _BERT,
        {**_TINY_ENCODER, "vocab_size": 128, "max_position_embeddings": 64},
        _tokens(30522, 24, 512, labels=True),
        Guess(0.62, 13, 180, 50),
        training=True,
        note="BERT-large, 24 x 512 tokens",
    ),
    Spec(
        "vit_train",
        "transformers",
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_labels": 1000,
        },
        {**_TINY_ENCODER, "patch_size": 8, "image_size": 32},
        _images(64, 224, (4, 32), classes=1000),
        Guess(0.57, 10, 150, 45),
        training=True,
        note="ViT-large, 64 images",
    ),
    Spec(
        "t5_train",
        "transformers",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            **_T5,
            "d_model": 1024,
            "d_ff": 4096,
            "d_kv": 64,
            "num_heads": 16,
            "num_layers": 24,
            "num_decoder_layers": 24,
        },
        _TINY_T5,
        _pair(32128, 8, 512, 128, labels=True),
        Guess(1.4, 14, 200, 70),
        training=True,
        note="T5-large, 8 x 512 in, 8 x 128 out",
    ),
    Spec(
        "convnext_train",
        "transformers",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024], "num_labels": 1000},
        {"depths": [1, 1, 3, 1], "hidden_sizes": [8, 16, 32, 64]},
        _images(64, 224, (4, 32), classes=1000),
        Guess(0.17, 10, 120, 45),
        training=True,
        note="ConvNeXt-base, 64 images",
    ),
)
MODELS = {spec.name: spec for spec in _ALL}
"""By name, the most important first."""
