"""Models that are not ours, with random weights, for `fit_sweep.py`: transformers, diffusers, torchvision, timm.

    for case in CASES:
        built = case.build("tiny", train=True)
        loss = built.loss(built.model(*built.args, **built.kwargs))

A case is a row of a table: the model's class, what it is called with, and sizes where the general ones do not
do. A config is given only those of the general sizes that it takes, so that one table serves many families
and several versions of the libraries. Dropout is set to zero, so that two runs can be compared. `scale` is one of

    tiny    a second on a CPU
    wide    few layers of real width: tensors of about 0.25 to 1.5 GB, which are traced in seconds
    gpu     as published, or weights of about 0.2 to 2 GB: 24 layers take a minute of tracing

What works at real sizes (kernels, their workspaces, memory) does not depend on depth: "wide" is for a GPU with
little time. Its rules are in `Family.sized`, `few_layers`, `tiny`, `ImageNet.wide_batch` and `Denoiser.make`.

A class or a library that is not there is `Unavailable`, a skip with its reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Options = dict[str, Any]
Loss = Callable[[Any], Tensor]


class Unavailable(Exception):
    """The library, or this version of it, does not have the model."""


class Built(NamedTuple):
    """A model and one call of it; `loss` makes a scalar of what the call gives."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Options
    loss: Loss


@dataclass(frozen=True)
class Case:
    """A named architecture of a library; `trains` is false where a training step makes no sense."""

    name: str
    library: str
    make: Callable[[Scale, bool], Built]
    trains: bool = True

    def build(self, scale: str = "tiny", train: bool = False) -> Built:
        """The model with random weights (seed 0), no dropout, in the mode asked for."""
        torch.manual_seed(0)
        built = self.make(SCALES[scale], train)
        remove_dropout(built.model)
        fill_zero_weights(built.model)
        built.model.train(train)
        return built


@dataclass(frozen=True)
class Scale:
    """General sizes, which a family takes as far as it knows their names."""

    name: str
    batch: int
    tokens: int
    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    image: int
    samples: int

    @property
    def tiny(self) -> bool:
        """Whether this is the scale for a CPU."""
        return self.name == "tiny"

    @property
    def shallow(self) -> bool:
        """Whether models have few layers, however wide they are."""
        return self.name != "gpu"

    def tower(self, **more: Any) -> Options:
        """Sizes of one tower of a model of several: the four names on which most configs agree."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.ffn,
            **more,
        }

    def text(self, **more: Any) -> Options:
        """A text tower."""
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        return self.tower(vocab_size=self.vocab, max_position_embeddings=4 * self.tokens, **ids, **more)

    def vision(self, **more: Any) -> Options:
        """A vision tower over square images."""
        return self.tower(image_size=self.image, patch_size=8 if self.tiny else 16, **more)


SCALES = {
    "tiny": Scale(
        "tiny", batch=2, tokens=64, hidden=128, layers=3, heads=4, ffn=256, vocab=1000, image=64, samples=8000
    ),
    "wide": Scale(
        "wide",
        batch=8,
        tokens=256,
        hidden=1024,
        layers=3,
        heads=16,
        ffn=4096,
        vocab=16000,
        image=224,
        samples=40000,
    ),
    "gpu": Scale(
        "gpu",
        batch=8,
        tokens=512,
        hidden=1024,
        layers=24,
        heads=16,
        ffn=4096,
        vocab=32000,
        image=224,
        samples=80000,
    ),
}


# What is common to all libraries.


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors of an output in the order in which they are written: mappings, sequences, dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from tensors_of(getattr(value, each.name))


def loss_of(output: Any) -> Tensor:
    """The output's own loss where it has one, else the distance from a fixed wave.

    Mean squares alone would say nothing after a normalisation, whose output has a constant mean square.
    """
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own.mean()
    if isinstance(output, Mapping) and any("loss" in str(name) for name in output):
        return sum_of(each.mean() for name, each in output.items() if "loss" in str(name))
    found = [each for each in tensors_of(output) if each.is_floating_point() and each.requires_grad][:3]
    return sum_of(distance(each) for each in found)


def distance(values: Tensor) -> Tensor:
    """Mean squared distance of a tensor from a wave of its shape."""
    wave = torch.arange(values.numel(), device=values.device, dtype=torch.float32).cos()
    return (values.float() - wave.view(values.shape)).square().mean()


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """The sum of scalars, of which there is at least one."""
    return torch.stack(list(values)).sum()


def remove_dropout(model: nn.Module) -> None:
    """Every kind of dropout, drop path and stochastic depth drops nothing from here on."""
    for module in model.modules():
        if "drop" in type(module).__name__.lower() or "stochasticdepth" in type(module).__name__.lower():
            for name in ("p", "drop_prob"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)


def fill_zero_weights(model: nn.Module) -> None:
    """Give weights that begin at zero small values: behind a head of zeros every gradient would be zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad or parameter.is_meta or not parameter.is_floating_point():
                continue
            few = parameter.flatten()[:64]  # they say it of most, without a pass over all
            if not few.any() and not parameter.any():
                parameter.normal_(std=0.02)


def library(name: str) -> ModuleType:
    """A library by its name, or `Unavailable` with the reason."""
    try:
        declare_vision_operators()
        return importlib.import_module(name)
    except Exception as error:  # a library that is not made for this torch fails in its own ways
        raise Unavailable(f"{name} can't be imported: {first_line(error)}") from error


def attribute(module: ModuleType, name: str) -> Any:
    """A class of a library, or `Unavailable` with the version that lacks it."""
    try:
        return getattr(module, name)
    except Exception as error:
        version = getattr(module, "__version__", "?")
        raise Unavailable(f"{module.__name__} {version} has no {name}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """An error as one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]


_declared: list[torch.library.Library] = []


def declare_vision_operators() -> None:
    """Declare two operators that torchvision wants to exist, where its own library does not load.

    torchvision's wheels are for CUDA; over a CPU torch only its models are needed, not its operators.
    """
    spec = None if _declared else importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return
    try:
        for path in sorted(Path(spec.submodule_search_locations[0]).glob("_C*.so")):
            torch.ops.load_library(str(path))
        getattr(torch.ops.torchvision, "nms").default  # noqa: B009, B018
    except (OSError, AttributeError, RuntimeError):
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(declared)


def rand(*shape: int) -> Tensor:
    """Noise, the values of an image, a sound or a series."""
    return torch.randn(*shape, device="cpu")


def randint(high: int, *shape: int, low: int = 0) -> Tensor:
    """Whole numbers: token or class ids."""
    return torch.randint(low, high, shape, device="cpu")


# Transformers: what a model is called with. Each takes the scale, the config and whether labels are wanted.

Inputs = Callable[["Scale", Any, bool], Options]


def text_config(config: Any) -> Any:
    """The part of a config that knows the vocabulary."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def padded_mask(s: Scale) -> Tensor:
    """An attention mask whose last row is padded by a quarter."""
    mask = torch.ones(s.batch, s.tokens, dtype=torch.long, device="cpu")
    mask[-1, -s.tokens // 4 :] = 0
    return mask


def token_ids(s: Scale, config: Any) -> Tensor:
    """Ids of ordinary tokens, special ones left out."""
    return randint(getattr(text_config(config), "vocab_size", None) or s.vocab, s.batch, s.tokens, low=5)


def lm(s: Scale, config: Any, train: bool) -> Options:
    """A language model, masked or causal: a label a token."""
    ids = token_ids(s, config)
    return {"input_ids": ids, "attention_mask": padded_mask(s), **({"labels": ids.clone()} if train else {})}


def plain_lm(s: Scale, config: Any, train: bool) -> Options:
    """A language model that takes no mask."""
    return {name: value for name, value in lm(s, config, train).items() if name != "attention_mask"}


def token_classes(s: Scale, config: Any, train: bool) -> Options:
    """A class of two for every token."""
    return {**lm(s, config, False), **({"labels": randint(2, s.batch, s.tokens)} if train else {})}


def text_classes(s: Scale, config: Any, train: bool) -> Options:
    """A class of two for every text."""
    return {**lm(s, config, False), **({"labels": randint(2, s.batch)} if train else {})}


def span(s: Scale, config: Any, train: bool) -> Options:
    """Question answering: the first and the last token of the answer."""
    ends = {"start_positions": randint(s.tokens, s.batch), "end_positions": randint(s.tokens, s.batch)}
    return {**lm(s, config, False), **(ends if train else {})}


def boxed(s: Scale, config: Any, train: bool) -> Options:
    """Text with a box on the page for every token."""
    corner = randint(400, s.batch, s.tokens, 2)
    return {**token_classes(s, config, train), "bbox": torch.cat([corner, corner + 300], dim=-1)}


def seq2seq(s: Scale, config: Any, train: bool) -> Options:
    """Encoder and decoder over text."""
    ids = token_ids(s, config)
    decoder = {"labels": ids.clone()} if train else {"decoder_input_ids": ids.clone()}
    return {"input_ids": ids, "attention_mask": padded_mask(s), **decoder}


def side(s: Scale, config: Any) -> int:
    """The side of an image: what the config says, else the scale's."""
    inner = getattr(config, "vision_config", None) or getattr(config, "backbone_config", None) or config
    size = getattr(config, "image_size", None) or getattr(inner, "image_size", None) or s.image
    return int(size if isinstance(size, int) else size[0])


def pixels(s: Scale, config: Any, train: bool) -> Options:
    """Images, with a class each."""
    image = rand(s.batch, getattr(config, "num_channels", 3) or 3, side(s, config), side(s, config))
    return {"pixel_values": image, **({"labels": randint(2, s.batch)} if train else {})}


def only_pixels(s: Scale, config: Any, train: bool) -> Options:
    """Images without labels."""
    return {"pixel_values": pixels(s, config, False)["pixel_values"]}


def segments(s: Scale, config: Any, train: bool) -> Options:
    """Images with a class a pixel."""
    labels = {"labels": randint(2, s.batch, side(s, config), side(s, config))} if train else {}
    return {**only_pixels(s, config, train), **labels}


def masked_pixels(s: Scale, config: Any, train: bool) -> Options:
    """Images of which some patches are hidden, by a noise that is given."""
    patches = (side(s, config) // config.patch_size) ** 2
    return {**only_pixels(s, config, train), "noise": torch.rand(s.batch, patches, device="cpu")}


def clips(s: Scale, config: Any, train: bool) -> Options:
    """Videos, with a class each."""
    video = rand(s.batch, config.num_frames, 3, side(s, config), side(s, config))
    return {"pixel_values": video, **({"labels": randint(2, s.batch)} if train else {})}


def samples(s: Scale, config: Any, train: bool) -> Options:
    """Raw sound, with the letters that are heard."""
    labels = {"labels": randint(config.vocab_size, s.batch, 6, low=5)} if train else {}
    return {"input_values": rand(s.batch, s.samples), **labels}


def only_samples(s: Scale, config: Any, train: bool) -> Options:
    """Raw sound of one channel."""
    return {"input_values": rand(s.batch, 1, s.samples)}


def frames(s: Scale, config: Any, train: bool) -> Options:
    """A spectrogram [batch, bins, frames], and text that is read from it."""
    sound = rand(s.batch, config.num_mel_bins, 2 * config.max_source_positions)
    ids = randint(config.vocab_size, s.batch, 16, low=5)
    return {"input_features": sound, **({"labels": ids} if train else {"decoder_input_ids": ids})}


def image_text(s: Scale, config: Any, train: bool) -> Options:
    """An image and a text each; a contrastive model gives its loss when asked."""
    wanted = {"return_loss": True} if train else {}
    return {**lm(s, config, False), **only_pixels(s, config, False), **wanted}


def image_lm(s: Scale, config: Any, train: bool) -> Options:
    """Images and a text that is learned token by token."""
    return {**lm(s, config, train), **only_pixels(s, config, False)}


def image_to_text(s: Scale, config: Any, train: bool) -> Options:
    """An image and the text that is read from it."""
    ids = token_ids(s, getattr(config, "decoder", config))
    decoder = {"labels": ids} if train else {"decoder_input_ids": ids}
    return {**only_pixels(s, getattr(config, "encoder", config), False), **decoder}


def image_slots(s: Scale, config: Any, train: bool) -> Options:
    """Images and a text in which every image has its own tokens."""
    vision = config.vision_config
    count = (vision.image_size // vision.patch_size) ** 2
    ids = torch.cat(
        [torch.full((s.batch, count), config.image_token_id, device="cpu"), token_ids(s, config)], dim=1
    )
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **only_pixels(s, config, False)}
    if "token_type_ids" in inspect.signature(transformers_class("PaliGemmaModel").forward).parameters:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    return {**inputs, **({"labels": ids.clone()} if train else {})}


def series(s: Scale, config: Any, train: bool) -> Options:
    """Time series with features of time, past and future."""
    past = config.context_length + max(config.lags_sequence)
    inputs = {
        "past_values": rand(s.batch, past),
        "past_time_features": rand(s.batch, past, config.num_time_features),
        "past_observed_mask": torch.ones(s.batch, past, device="cpu"),
        "future_time_features": rand(s.batch, config.prediction_length, config.num_time_features),
        "future_values": rand(s.batch, config.prediction_length),
    }
    return inputs


def plain_series(s: Scale, config: Any, train: bool) -> Options:
    """Several time series, and what comes after when it is to be learned."""
    future = {"future_values": rand(s.batch, config.prediction_length, config.num_input_channels)}
    past = rand(s.batch, config.context_length, config.num_input_channels)
    return {"past_values": past, **(future if train else {})}


def boxes_in(s: Scale, config: Any, train: bool) -> Options:
    """Images with two objects each."""
    labels = [
        {
            "class_labels": randint(2, 2),
            "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.6, 0.3, 0.3]], device="cpu"),
        }
        for _ in range(s.batch)
    ]
    return {**only_pixels(s, config, train), **({"labels": labels} if train else {})}


# Transformers: the general sizes, by every name that configs have for them.


def text_sizes(s: Scale) -> Options:
    """For models over tokens."""
    half = max(2, s.layers // 2)
    head = s.hidden // s.heads
    return {
        "vocab_size": s.vocab,
        **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim"), s.hidden),
        **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer"), s.layers),
        **dict.fromkeys(("encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers"), half),
        **dict.fromkeys(("num_encoder_layers",), half),
        **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), s.heads),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), s.heads),
        **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), s.heads),
        "num_key_value_heads": s.heads // 2,
        **dict.fromkeys(("head_dim", "d_kv"), head),
        **dict.fromkeys(("intermediate_size", "d_ff", "n_inner", "ffn_dim", "hidden_dim"), s.ffn),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), s.ffn),
        **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 4 * s.tokens),
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
        **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_top_k"), 2),
        **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), s.ffn // 2),
        **dict.fromkeys(("sliding_window",), s.tokens // 2),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "use_cache": False,
    }


def vision_sizes(s: Scale) -> Options:
    """For vision transformers; at the scale of a GPU as published."""
    return s.vision() if s.shallow else {}


def audio_sizes(s: Scale) -> Options:
    """For speech encoders; at the scale of a GPU as published."""
    wide = (64,) * 7
    tiny = {"conv_dim": wide, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    silent = {"mask_time_prob": 0.0, "apply_spec_augment": False}
    tower = s.tower(**(tiny if s.tiny else {})) if s.shallow else {}
    return {**tower, "vocab_size": 32, **silent}


def no_sizes(s: Scale) -> Options:
    """For configs of several towers: all is said in the row."""
    return {}


SIZES: dict[str, Callable[[Scale], Options]] = {
    "text": text_sizes,
    "vision": vision_sizes,
    "audio": audio_sizes,
    "own": no_sizes,
}


@dataclass(frozen=True)
class Family:
    """A row: a model class of transformers, its call, its sizes, and what differs."""

    name: str
    model: str
    inputs: Inputs
    sizes: str
    options: Callable[[Scale], Options] | Options = field(default_factory=dict)
    trains: bool = True
    changes: Mapping[str, Options] = field(default_factory=dict)

    def sized(self, scale: Scale, train: bool) -> Scale:
        """The scale as this family changes it.

        "wide" takes the changes of "gpu" where it has none of its own, but neither more layers nor more tokens in
        all than it has; in training half the batch, for a step keeps several times as much.
        """
        changes = dict(self.changes.get(scale.name, {}))
        if scale.name == "wide":
            changes = changes or dict(self.changes.get("gpu", {}))
            if "layers" in changes:
                changes["layers"] = max(2, scale.layers * changes["layers"] // SCALES["gpu"].layers)
            if changes.get("tokens", 0) > scale.tokens:
                changes["batch"] = scale.batch * scale.tokens // changes["tokens"]
            batch = changes.get("batch", scale.batch)
            changes["batch"] = max(2, batch // 2) if train else batch
        return replace(scale, **changes)

    def make(self, scale: Scale, train: bool) -> Built:
        """The model and its call."""
        scale = self.sized(scale, train)
        model_class = transformers_class(self.model)
        config_class = model_class.config_class
        options = self.options(scale) if callable(self.options) else self.options
        sizes = {**few_layers(config_class, scale), **known(config_class, SIZES[self.sizes](scale))}
        config = make_config(config_class, {**sizes, **with_few_layers(options, scale)})
        model = model_class(config)
        kwargs = self.inputs(scale, config, train)
        taken = inspect.signature(model.forward).parameters
        return Built(model, (), {k: v for k, v in kwargs.items() if k in taken}, loss_of)


def transformers_class(name: str) -> Any:
    """A model class of transformers."""
    return attribute(library("transformers"), name)


def known(config_class: type, options: Options) -> Options:
    """Those of the general sizes that a config takes."""
    taken = inspect.signature(config_class).parameters
    return {key: value for key, value in options.items() if key in taken}


LAYERS = {
    "num_hidden_layers",
    "decoder_num_hidden_layers",
    "encoder_layers",
    "decoder_layers",
    "depth_coefficient",
    "depths",
    "stage_num_blocks",
    "stage_numb_of_layers",
    "n_attn_blocks",
}
"""Names of a depth in configs, as a number or stage by stage."""


def few_layers(config_class: type, s: Scale) -> Options:
    """At "wide" the published depths that are deeper than the scale's, cut to it; two layers a stage."""
    found: Options = {}
    for name, parameter in inspect.signature(config_class).parameters.items() if s.name == "wide" else ():
        published = parameter.default
        if name in LAYERS and isinstance(published, int | float):
            found[name] = min(published, 1.0 if isinstance(published, float) else s.layers)
        elif name in LAYERS and isinstance(published, list | tuple):
            found[name] = [min(each, 2) for each in published]
    return found


def with_few_layers(options: Options, s: Scale) -> Options:
    """Options with the depths of `few_layers` in the inner configs that say what model they are."""
    if s.name != "wide":
        return options
    known_configs = attribute(library("transformers"), "CONFIG_MAPPING")
    return {
        name: {**few_layers(known_configs[value["model_type"]], s), **value}
        if isinstance(value, dict) and "model_type" in value
        else value
        for name, value in options.items()
    }


def make_config(config_class: Any, options: Options) -> Any:
    """A config without dropout and without other noise, its inner configs too."""
    config = config_class(**options)
    if getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 2  # T5's kin have none, yet shift their labels by it
    remove_noise(config)
    return config


def remove_noise(config: Any) -> None:
    """Set what draws at random in training to zero, in the config and those inside it."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            remove_noise(value)
        elif isinstance(value, float) and ("drop" in name or "jitter" in name):
            setattr(config, name, 0.0)


def text_rows(inputs: Inputs, table: Mapping[str, str], **more: Any) -> list[Family]:
    """Rows that need nothing but their class."""
    return [Family(name, model, inputs, "text", **more) for name, model in table.items()]


SHORT = {"tiny": {"tokens": 16}, "gpu": {"tokens": 64, "layers": 8}}
"""For models whose plain code goes token by token."""

BLOCKS = {"block_size": 16, "num_random_blocks": 2}
"""BigBird's sparse attention; in training its random blocks come from NumPy, which torch.compile draws otherwise."""

LONG = {"tiny": {"tokens": 256}, "gpu": {"tokens": 1024}}
"""For models whose sparse attention wants more tokens than there are blocks."""

EXPERTS = {"gpu": {"layers": 8}}
"""For mixtures of experts, whose layers are several times as large."""

ENCODERS = [
    *text_rows(
        lm,
        {
            "albert": "AlbertForMaskedLM",
            "bert": "BertForMaskedLM",
            "convbert": "ConvBertForMaskedLM",
            "deberta": "DebertaForMaskedLM",
            "distilbert": "DistilBertForMaskedLM",
            "electra": "ElectraForMaskedLM",
            "ernie": "ErnieForMaskedLM",
            "eurobert": "EuroBertForMaskedLM",
            "flaubert": "FlaubertWithLMHeadModel",
            "fnet": "FNetForMaskedLM",
            "ibert": "IBertForMaskedLM",
            "megatron-bert": "MegatronBertForMaskedLM",
            "mpnet": "MPNetForMaskedLM",
            "nystromformer": "NystromformerForMaskedLM",
            "roberta-prelayernorm": "RobertaPreLayerNormForMaskedLM",
            "roformer": "RoFormerForMaskedLM",
            "xlm": "XLMWithLMHeadModel",
            "xlm-roberta-xl": "XLMRobertaXLForMaskedLM",
            "nomic-bert": "NomicBertForMaskedLM",
            "gte": "GteForMaskedLM",
        },
    ),
    Family("roberta", "RobertaForSequenceClassification", text_classes, "text"),
    Family("camembert", "CamembertForTokenClassification", token_classes, "text"),
    Family("xlm-roberta", "XLMRobertaForQuestionAnswering", span, "text"),
    Family("splinter", "SplinterForQuestionAnswering", span, "text"),
    Family("squeezebert", "SqueezeBertForMaskedLM", lm, "text", lambda s: {"embedding_size": s.hidden}),
    Family("xmod", "XmodForMaskedLM", lm, "text", {"default_language": "en_XX"}),
    Family(
        "rembert",
        "RemBertForMaskedLM",
        lm,
        "text",
        lambda s: {"input_embedding_size": 64, "output_embedding_size": s.hidden},
    ),
    Family(
        "roc-bert",
        "RoCBertForMaskedLM",
        lm,
        "text",
        {
            "pronunciation_vocab_size": 100,
            "pronunciation_embed_dim": 64,
            "shape_vocab_size": 200,
            "shape_embed_dim": 64,
        },
    ),
    Family(
        "luke",
        "LukeForMaskedLM",
        lm,
        "text",
        lambda s: {"entity_vocab_size": 100, "entity_emb_size": s.hidden},
    ),
    Family(
        "deberta-v2",
        "DebertaV2ForMaskedLM",
        lm,
        "text",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    Family(
        "esm",
        "EsmForMaskedLM",
        lm,
        "text",
        {"mask_token_id": 4, "token_dropout": False, "position_embedding_type": "rotary"},
    ),
    Family(
        "mobilebert",
        "MobileBertForMaskedLM",
        lm,
        "text",
        lambda s: (
            {"embedding_size": 128, "intra_bottleneck_size": 128, "num_attention_heads": 4}
            | ({} if s.tiny else {"hidden_size": 512, "intermediate_size": 512})
        ),
    ),
    Family("modernbert", "ModernBertForMaskedLM", lm, "text", {"cls_token_id": 1, "sep_token_id": 2}),
    Family(
        "funnel",
        "FunnelForMaskedLM",
        lm,
        "text",
        lambda s: {
            "block_sizes": [2, 2] if s.shallow else [8, 8, 8],
            "d_inner": s.ffn,
            "d_head": s.hidden // s.heads,
        },
    ),
    Family("xlnet", "XLNetLMHeadModel", lm, "text", lambda s: {"d_inner": s.ffn}),
    Family("longformer", "LongformerForMaskedLM", lm, "text", {"attention_window": 32}, changes=LONG),
    Family("big-bird", "BigBirdForMaskedLM", lm, "text", BLOCKS, changes=LONG, trains=False),
    Family("yoso", "YosoForMaskedLM", lm, "text", {"use_expectation": True}),
    Family(
        "canine",
        "CanineForTokenClassification",
        token_classes,
        "text",
        {"downsampling_rate": 4, "num_hash_buckets": 1024},
    ),
    Family("layoutlm", "LayoutLMForTokenClassification", boxed, "text"),
    Family(
        "lilt",
        "LiltForTokenClassification",
        boxed,
        "text",
        changes={"tiny": {"hidden": 192}, "gpu": {"hidden": 960}},
    ),
    Family("bros", "BrosForTokenClassification", boxed, "text"),
    Family("markuplm", "MarkupLMForTokenClassification", token_classes, "text"),
    Family("tapas", "TapasForMaskedLM", lm, "text"),
    Family(
        "reformer",
        "ReformerForMaskedLM",
        lm,
        "text",
        lambda s: {
            "attn_layers": ["local", "lsh"] * (s.layers // 2 + 1),
            "is_decoder": False,
            "feed_forward_size": s.ffn,
            "attention_head_size": s.hidden // s.heads,
            "axial_pos_embds": False,
            "local_attn_chunk_length": 16,
            "lsh_attn_chunk_length": 16,
            "num_buckets": 4,
            "hash_seed": 0,
        },
        trains=False,
    ),
    Family(
        "perceiver",
        "PerceiverForMaskedLM",
        lm,
        "text",
        lambda s: {
            "max_position_embeddings": s.tokens,
            "num_latents": 32,
            "d_latents": s.hidden,
            "num_self_attends_per_block": s.layers,
            "num_self_attention_heads": s.heads,
            "num_cross_attention_heads": s.heads,
            "qk_channels": s.hidden,
            "v_channels": s.hidden,
        },
    ),
]

MAMBA = {"state_size": 16, "conv_kernel": 4}

DECODERS = [
    *text_rows(
        lm,
        {
            "apertus": "ApertusForCausalLM",
            "arcee": "ArceeForCausalLM",
            "biogpt": "BioGptForCausalLM",
            "bitnet": "BitNetForCausalLM",
            "bloom": "BloomForCausalLM",
            "cohere": "CohereForCausalLM",
            "cohere2": "Cohere2ForCausalLM",
            "ctrl": "CTRLLMHeadModel",
            "diffllama": "DiffLlamaForCausalLM",
            "ernie4-5": "Ernie4_5ForCausalLM",
            "exaone4": "Exaone4ForCausalLM",
            "falcon": "FalconForCausalLM",
            "gemma": "GemmaForCausalLM",
            "gemma2": "Gemma2ForCausalLM",
            "gemma3": "Gemma3ForCausalLM",
            "glm": "GlmForCausalLM",
            "glm4": "Glm4ForCausalLM",
            "gpt2": "GPT2LMHeadModel",
            "gpt-bigcode": "GPTBigCodeForCausalLM",
            "gpt-neox": "GPTNeoXForCausalLM",
            "gpt-neox-japanese": "GPTNeoXJapaneseForCausalLM",
            "granite": "GraniteForCausalLM",
            "helium": "HeliumForCausalLM",
            "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
            "llama": "LlamaForCausalLM",
            "mistral": "MistralForCausalLM",
            "modernbert-decoder": "ModernBertDecoderForCausalLM",
            "mpt": "MptForCausalLM",
            "nanochat": "NanoChatForCausalLM",
            "nemotron": "NemotronForCausalLM",
            "olmo": "OlmoForCausalLM",
            "olmo2": "Olmo2ForCausalLM",
            "olmo3": "Olmo3ForCausalLM",
            "openai-gpt": "OpenAIGPTLMHeadModel",
            "opt": "OPTForCausalLM",
            "persimmon": "PersimmonForCausalLM",
            "phi": "PhiForCausalLM",
            "phi3": "Phi3ForCausalLM",
            "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM",
            "seed-oss": "SeedOssForCausalLM",
            "smollm3": "SmolLM3ForCausalLM",
            "stablelm": "StableLmForCausalLM",
            "starcoder2": "Starcoder2ForCausalLM",
            "vaultgemma": "VaultGemmaForCausalLM",
            "xglm": "XGLMForCausalLM",
            "lfm2": "Lfm2ForCausalLM",
            "doge": "DogeForCausalLM",
        },
    ),
    *text_rows(
        lm,
        {
            "ernie4-5-moe": "Ernie4_5_MoeForCausalLM",
            "glm4-moe": "Glm4MoeForCausalLM",
            "gpt-oss": "GptOssForCausalLM",
            "granitemoe": "GraniteMoeForCausalLM",
            "granitemoeshared": "GraniteMoeSharedForCausalLM",
            "mixtral": "MixtralForCausalLM",
            "olmoe": "OlmoeForCausalLM",
            "phimoe": "PhimoeForCausalLM",
            "qwen2-moe": "Qwen2MoeForCausalLM",
            "qwen3-moe": "Qwen3MoeForCausalLM",
            "minimax": "MiniMaxForCausalLM",
        },
        changes=EXPERTS,
    ),
    Family(
        "gpt-neo",
        "GPTNeoForCausalLM",
        lm,
        "text",
        lambda s: {
            "attention_types": [[["global", "local"], (s.layers + 1) // 2]],
            "num_layers": 2 * ((s.layers + 1) // 2),
            "window_size": 16,
        },
    ),
    Family("gptj", "GPTJForCausalLM", lm, "text", {"rotary_dim": 16}),
    Family("codegen", "CodeGenForCausalLM", lm, "text", {"rotary_dim": 16}),
    Family(
        "dbrx",
        "DbrxForCausalLM",
        lm,
        "text",
        lambda s: {
            "attn_config": {"kv_n_heads": s.heads // 2, "clip_qkv": 8, "rope_theta": 10000.0},
            "ffn_config": {
                "ffn_hidden_size": s.ffn,
                "moe_num_experts": 4,
                "moe_top_k": 2,
                "hidden_size": s.hidden,
            },
        },
        changes=EXPERTS,
    ),
    Family(
        "deepseek-v2",
        "DeepseekV2ForCausalLM",
        lm,
        "text",
        lambda s: {
            "num_key_value_heads": s.heads,
            "kv_lora_rank": 32,
            "q_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "head_dim": 16,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
        },
        changes=EXPERTS,
    ),
    Family(
        "deepseek-v3",
        "DeepseekV3ForCausalLM",
        lm,
        "text",
        lambda s: {
            "num_key_value_heads": s.heads,
            "kv_lora_rank": 32,
            "q_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "head_dim": 16,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
        changes=EXPERTS,
    ),
    Family(
        "jetmoe",
        "JetMoeForCausalLM",
        lm,
        "text",
        lambda s: {"kv_channels": s.hidden // s.heads},
        changes=EXPERTS,
    ),
    Family(
        "llama4",
        "Llama4ForCausalLM",
        lm,
        "text",
        lambda s: {
            "intermediate_size_mlp": s.ffn,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": s.tokens // 2,
        },
        changes=EXPERTS,
    ),
    Family("rwkv", "RwkvForCausalLM", plain_lm, "text", {"attention_hidden_size": None}, changes=SHORT),
    Family("mamba", "MambaForCausalLM", plain_lm, "text", MAMBA, changes=SHORT),
    Family("falcon-mamba", "FalconMambaForCausalLM", plain_lm, "text", MAMBA, changes=SHORT),
    Family(
        "mamba2",
        "Mamba2ForCausalLM",
        plain_lm,
        "text",
        lambda s: {
            "num_heads": 8,
            "head_dim": s.hidden // 4,
            "state_size": 16,
            "n_groups": 1,
            "chunk_size": 16,
        },
    ),
    Family(
        "jamba",
        "JambaForCausalLM",
        lm,
        "text",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 16,
            "use_mamba_kernels": False,
        },
        changes=SHORT,
    ),
    Family(
        "bamba",
        "BambaForCausalLM",
        lm,
        "text",
        lambda s: {
            "attn_layer_indices": [1],
            "mamba_n_heads": 8,
            "mamba_d_head": s.hidden // 4,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
        },
    ),
    Family(
        "falcon-h1",
        "FalconH1ForCausalLM",
        lm,
        "text",
        lambda s: {
            "mamba_d_ssm": 2 * s.hidden,
            "mamba_n_heads": 8,
            "mamba_d_head": s.hidden // 4,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
        },
    ),
    Family(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        lm,
        "text",
        lambda s: {
            "layer_types": (["mamba", "attention"] * s.layers)[: s.layers],
            "mamba_n_heads": 8,
            "mamba_d_head": s.hidden // 4,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
            "shared_intermediate_size": s.ffn,
        },
        changes=EXPERTS,
    ),
    Family(
        "zamba2",
        "Zamba2ForCausalLM",
        lm,
        "text",
        lambda s: {
            "num_hidden_layers": 4 if s.shallow else 12,
            "layers_block_type": ["mamba", "hybrid"] * (2 if s.shallow else 6),
            "hybrid_layer_ids": [1, 3],
            "mamba_d_state": 16,
            "n_mamba_heads": 8,
            "mamba_ngroups": 1,
            "chunk_size": 16,
            "num_mem_blocks": 1,
            "adapter_rank": 8,
            "use_mem_rope": True,
        },
    ),
    Family(
        "recurrent-gemma",
        "RecurrentGemmaForCausalLM",
        lm,
        "text",
        lambda s: {
            "lru_width": s.hidden,
            "attention_window_size": 32,
            "num_key_value_heads": 1,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
        changes=SHORT,
    ),
    Family(
        "qwen3-next",
        "Qwen3NextForCausalLM",
        lm,
        "text",
        lambda s: {
            "num_hidden_layers": 4 if s.shallow else 12,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        changes=EXPERTS,
    ),
    Family(
        "xlstm",
        "xLSTMForCausalLM",
        plain_lm,
        "text",
        lambda s: {"num_blocks": s.layers, "chunk_size": 16, "return_last_states": True, "mode": "train"},
    ),
    Family("imagegpt", "ImageGPTForCausalImageModeling", lm, "text"),
    Family(
        "cpmant",
        "CpmAntForCausalLM",
        plain_lm,
        "text",
        lambda s: {
            "dim_head": s.hidden // s.heads,
            "dim_ff": s.ffn,
            "prompt_types": 8,
            "prompt_length": 8,
            "segment_types": 8,
        },
    ),
]

SEQ2SEQ = [
    *text_rows(
        seq2seq,
        {
            "bart": "BartForConditionalGeneration",
            "blenderbot": "BlenderbotForConditionalGeneration",
            "blenderbot-small": "BlenderbotSmallForConditionalGeneration",
            "longt5": "LongT5ForConditionalGeneration",
            "m2m100": "M2M100ForConditionalGeneration",
            "marian": "MarianMTModel",
            "mbart": "MBartForConditionalGeneration",
            "mt5": "MT5ForConditionalGeneration",
            "mvp": "MvpForConditionalGeneration",
            "pegasus": "PegasusForConditionalGeneration",
            "plbart": "PLBartForConditionalGeneration",
            "prophetnet": "ProphetNetForConditionalGeneration",
            "switch-transformers": "SwitchTransformersForConditionalGeneration",
            "t5": "T5ForConditionalGeneration",
            "umt5": "UMT5ForConditionalGeneration",
            "nllb-moe": "NllbMoeForConditionalGeneration",
        },
    ),
    Family(
        "led",
        "LEDForConditionalGeneration",
        seq2seq,
        "text",
        lambda s: {
            "attention_window": 32,
            "max_encoder_position_embeddings": 2 * s.tokens,
            "max_decoder_position_embeddings": 2 * s.tokens,
        },
        changes=LONG,
    ),
    Family(
        "pegasus-x",
        "PegasusXForConditionalGeneration",
        seq2seq,
        "text",
        {"block_size": 32, "num_global_tokens": 8},
    ),
    Family(
        "bigbird-pegasus",
        "BigBirdPegasusForConditionalGeneration",
        seq2seq,
        "text",
        BLOCKS,
        changes=LONG,
        trains=False,
    ),
    Family(
        "fsmt",
        "FSMTForConditionalGeneration",
        seq2seq,
        "text",
        lambda s: {"langs": ["en", "de"], "src_vocab_size": s.vocab, "tgt_vocab_size": s.vocab},
    ),
    Family(
        "t5gemma",
        "T5GemmaForConditionalGeneration",
        seq2seq,
        "own",
        lambda s: {
            "encoder": {**s.text(), "head_dim": s.hidden // s.heads, "num_key_value_heads": 2},
            "decoder": {
                **s.text(),
                "head_dim": s.hidden // s.heads,
                "num_key_value_heads": 2,
                "use_cache": False,
                "cross_attention_hidden_size": s.hidden,
            },
            "vocab_size": s.vocab,
        },
        changes=EXPERTS,
    ),
]


PLACES = {
    "patch_size",
    "num_hidden_layers",
    "depth",
    "backbone_out_indices",
    "window_block_indices",
    "num_frames",
}
"""Options that belong to a small number of layers, or are no sizes."""


def tiny(**options: Any) -> Callable[[Scale], Options]:
    """Options for a CPU only: on a GPU a model is as published, with few layers where the scale has few."""
    places = {name: value for name, value in options.items() if name in PLACES}
    return lambda s: options if s.tiny else places if s.shallow else {}


FEW_IMAGES = {"wide": {"batch": 8}}
"""For videos, and where images of a batch are large inside."""

MANY = {"wide": {"batch": 96}}
"""For models that need little for each of a batch."""

STAGES = {"depths": [1, 1, 2, 1], "hidden_sizes": [32, 64, 128, 192]}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [32, 64, 96, 128],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage4"],
}


def detector(s: Scale, **more: Any) -> Options:
    """Sizes of a detector over a small ResNet, whose weights need no other library."""
    features = more.pop("out_features", ["stage4"])
    backbone = (
        {**RESNET, "out_features": features} if s.tiny else {"model_type": "resnet", "out_features": features}
    )
    sizes = {
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        "num_queries": 12,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    }
    no_timm = {"use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}
    return {"backbone_config": backbone, **no_timm, **(sizes if s.tiny else {}), **more}


VISION = [
    Family("aimv2", "Aimv2VisionModel", only_pixels, "vision"),
    Family("beit", "BeitForImageClassification", pixels, "vision"),
    Family(
        "bit",
        "BitForImageClassification",
        pixels,
        "vision",
        tiny(embedding_size=32, hidden_sizes=[64, 64, 128, 128], depths=[1, 1, 2, 1], num_groups=8),
    ),
    Family("convnext", "ConvNextForImageClassification", pixels, "vision", tiny(patch_size=4, **STAGES)),
    Family("convnextv2", "ConvNextV2ForImageClassification", pixels, "vision", tiny(patch_size=4, **STAGES)),
    Family(
        "cvt",
        "CvtForImageClassification",
        pixels,
        "vision",
        tiny(
            embed_dim=[32, 64, 128],
            num_heads=[1, 2, 4],
            depth=[1, 2, 3],
            drop_path_rate=[0.0, 0.0, 0.0],
            patch_sizes=[7, 3, 3],
        ),
    ),
    Family("data2vec-vision", "Data2VecVisionForImageClassification", pixels, "vision"),
    Family("deit", "DeiTForImageClassification", pixels, "vision"),
    Family("dinov2", "Dinov2ForImageClassification", pixels, "vision"),
    Family("dinov2-registers", "Dinov2WithRegistersForImageClassification", pixels, "vision"),
    Family("dinov3-vit", "DINOv3ViTModel", only_pixels, "vision"),
    Family("dinov3-convnext", "DINOv3ConvNextModel", only_pixels, "vision", tiny(**STAGES)),
    Family(
        "depth-anything",
        "DepthAnythingForDepthEstimation",
        only_pixels,
        "own",
        lambda s: {
            "backbone_config": {
                "model_type": "dinov2",
                **(s.tower(num_hidden_layers=4) if s.shallow else {"hidden_size": 768}),
                "image_size": 56 if s.tiny else 224,
                "patch_size": 14,
                "out_indices": [1, 2, 3, 4],
                "reshape_hidden_states": False,
            },
            "reassemble_hidden_size": s.hidden if s.shallow else 768,
            **(
                {"neck_hidden_sizes": [16, 32, 64, 64], "fusion_hidden_size": 32, "head_hidden_size": 16}
                if s.tiny
                else {}
            ),
        },
    ),
    Family(
        "dpt",
        "DPTForSemanticSegmentation",
        segments,
        "vision",
        tiny(
            num_hidden_layers=4,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[16, 32, 64, 64],
            fusion_hidden_size=32,
            is_hybrid=False,
        ),
        changes=FEW_IMAGES,
    ),
    Family(
        "efficientnet",
        "EfficientNetForImageClassification",
        pixels,
        "vision",
        tiny(width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640, initializer_range=0.3),
    ),
    Family(
        "focalnet",
        "FocalNetForImageClassification",
        pixels,
        "vision",
        tiny(patch_size=4, embed_dim=32, hidden_sizes=[32, 64, 128, 192], depths=[1, 1, 2, 1]),
    ),
    Family(
        "glpn",
        "GLPNForDepthEstimation",
        only_pixels,
        "own",
        tiny(
            hidden_sizes=[16, 32, 64, 96],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 4, 6],
            decoder_hidden_size=32,
        ),
    ),
    Family("hgnet-v2", "HGNetV2ForImageClassification", pixels, "own"),
    Family(
        "hiera",
        "HieraForImageClassification",
        pixels,
        "own",
        tiny(
            embed_dim=32,
            image_size=[64, 64],
            depths=[1, 1, 2, 1],
            num_heads=[1, 2, 4, 8],
            masked_unit_size=[8, 8],
        ),
    ),
    Family("ijepa", "IJepaForImageClassification", pixels, "vision"),
    Family(
        "levit",
        "LevitForImageClassification",
        pixels,
        "own",
        tiny(
            image_size=64,
            hidden_sizes=[64, 96, 128],
            num_attention_heads=[2, 3, 4],
            depths=[2, 2, 2],
            key_dim=[16, 16, 16],
        ),
        changes=MANY,
    ),
    Family("mlcd", "MLCDVisionModel", only_pixels, "vision", lambda s: s.vision()),
    Family(
        "mobilenet-v1",
        "MobileNetV1ForImageClassification",
        pixels,
        "own",
        tiny(image_size=96, depth_multiplier=0.5),
    ),
    Family(
        "mobilenet-v2",
        "MobileNetV2ForImageClassification",
        pixels,
        "own",
        tiny(image_size=96, depth_multiplier=0.5),
    ),
    Family(
        "mobilevit",
        "MobileViTForImageClassification",
        pixels,
        "own",
        tiny(image_size=64, hidden_sizes=[48, 64, 80], neck_hidden_sizes=[16, 32, 48, 64, 80, 96, 160]),
    ),
    Family(
        "mobilevitv2",
        "MobileViTV2ForImageClassification",
        pixels,
        "own",
        tiny(image_size=64, width_multiplier=0.5),
    ),
    Family(
        "poolformer",
        "PoolFormerForImageClassification",
        pixels,
        "own",
        lambda s: {**(STAGES if s.tiny else {}), "image_size": s.image},
    ),
    Family(
        "pvt",
        "PvtForImageClassification",
        pixels,
        "own",
        tiny(
            image_size=64,
            hidden_sizes=[32, 64, 96, 128],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 3, 4],
            mlp_ratios=[4, 4, 4, 4],
        ),
    ),
    Family(
        "pvt-v2",
        "PvtV2ForImageClassification",
        pixels,
        "own",
        tiny(
            image_size=64,
            hidden_sizes=[32, 64, 96, 128],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 3, 4],
            mlp_ratios=[4, 4, 4, 4],
        ),
    ),
    Family(
        "regnet",
        "RegNetForImageClassification",
        pixels,
        "own",
        tiny(embedding_size=16, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1], groups_width=16),
    ),
    Family(
        "resnet",
        "ResNetForImageClassification",
        pixels,
        "own",
        tiny(embedding_size=32, hidden_sizes=[64, 128, 192, 256], depths=[1, 1, 2, 1]),
    ),
    Family(
        "segformer",
        "SegformerForSemanticSegmentation",
        segments,
        "own",
        tiny(hidden_sizes=[16, 32, 64, 96], depths=[1, 1, 1, 1], decoder_hidden_size=64),
    ),
    Family(
        "seggpt",
        "SegGptForImageSegmentation",
        lambda s, c, train: {
            name: rand(s.batch, 3, c.image_size[1], c.image_size[1])
            for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")
        },
        "vision",
        lambda s: (
            ({"image_size": [64, 32], "pretrain_image_size": 32} if s.tiny else {})
            | ({"decoder_hidden_size": 32, "mlp_dim": 256} if s.tiny else {})
            | ({"image_size": [2 * s.image, s.image]} if s.name == "wide" else {})
            | (
                {"num_hidden_layers": 5, "intermediate_hidden_state_indices": [1, 2, 3, 4], "merge_index": 0}
                if s.shallow
                else {}
            )
        ),
        changes=FEW_IMAGES,
        trains=False,
    ),
    Family(
        "swiftformer",
        "SwiftFormerForImageClassification",
        pixels,
        "own",
        tiny(depths=[2, 2, 2, 2], embed_dims=[24, 32, 64, 96]),
    ),
    Family(
        "swin",
        "SwinForImageClassification",
        pixels,
        "own",
        tiny(image_size=64, patch_size=4, embed_dim=32, depths=[2, 2, 2], num_heads=[2, 4, 8], window_size=4),
    ),
    Family(
        "swinv2",
        "Swinv2ForImageClassification",
        pixels,
        "own",
        tiny(image_size=64, patch_size=4, embed_dim=32, depths=[2, 2, 2], num_heads=[2, 4, 8], window_size=4),
    ),
    Family(
        "swin2sr",
        "Swin2SRForImageSuperResolution",
        only_pixels,
        "own",
        lambda s: {
            "image_size": 32 if s.shallow else 64,
            "upscale": 2,
            **({"embed_dim": 48, "depths": [2, 2], "num_heads": [4, 4], "window_size": 4} if s.tiny else {}),
        },
    ),
    Family(
        "textnet",
        "TextNetForImageClassification",
        pixels,
        "own",
        lambda s: {"image_size": [s.image, s.image]} if s.shallow else {},
    ),
    Family(
        "upernet",
        "UperNetForSemanticSegmentation",
        segments,
        "own",
        lambda s: {
            "backbone_config": {
                "model_type": "convnext",
                "depths": STAGES["depths"] if s.shallow else [3, 3, 9, 3],
                "hidden_sizes": STAGES["hidden_sizes"] if s.tiny else [96, 192, 384, 768],
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            },
            "hidden_size": 64 if s.tiny else 512,
            "use_auxiliary_head": False,
            "backbone": None,
        },
        changes=FEW_IMAGES,
    ),
    Family("vit", "ViTForImageClassification", pixels, "vision"),
    Family(
        "vit-mae",
        "ViTMAEForPreTraining",
        masked_pixels,
        "vision",
        tiny(
            decoder_hidden_size=64,
            decoder_num_hidden_layers=2,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=128,
        ),
    ),
    Family("vit-msn", "ViTMSNForImageClassification", pixels, "vision"),
    Family("vitdet", "VitDetModel", only_pixels, "vision", tiny(window_block_indices=[0], window_size=4)),
    Family(
        "vitpose",
        "VitPoseForPoseEstimation",
        only_pixels,
        "own",
        lambda s: {
            "backbone_config": {
                "model_type": "vitpose_backbone",
                **(s.tower() if s.shallow else {}),
                "image_size": [64, 64] if s.tiny else [224, 224],
                "patch_size": [8, 8] if s.tiny else [16, 16],
                "out_features": ["stage3" if s.shallow else "stage12"],
            },
            "num_labels": 17,
            "use_simple_decoder": True,
            "backbone": None,
        },
        trains=False,
    ),
    Family(
        "yolos",
        "YolosForObjectDetection",
        only_pixels,
        "vision",
        lambda s: {"image_size": [s.image, s.image], "num_detection_tokens": 20},
    ),
    Family("detr", "DetrForObjectDetection", only_pixels, "own", detector),
    Family("conditional-detr", "ConditionalDetrForObjectDetection", only_pixels, "own", detector),
    Family(
        "dab-detr",
        "DabDetrForObjectDetection",
        only_pixels,
        "own",
        lambda s: detector(s, **({"hidden_size": 64} if s.tiny else {})),
    ),
    Family(
        "deformable-detr",
        "DeformableDetrForObjectDetection",
        only_pixels,
        "own",
        lambda s: detector(s, out_features=["stage2", "stage3", "stage4"], num_feature_levels=3),
    ),
    Family(
        "maskformer",
        "MaskFormerForInstanceSegmentation",
        only_pixels,
        "own",
        lambda s: {
            "backbone_config": {
                "model_type": "swin",
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
                **(
                    {
                        "image_size": 64,
                        "embed_dim": 16,
                        "depths": [1, 1, 1, 1],
                        "num_heads": [1, 2, 4, 8],
                        "window_size": 4,
                    }
                    if s.tiny
                    else {}
                ),
            },
            **(
                {
                    "fpn_feature_size": 64,
                    "mask_feature_size": 64,
                    "decoder_config": {
                        "model_type": "detr",
                        "d_model": 64,
                        "decoder_layers": 2,
                        "encoder_layers": 2,
                        "decoder_ffn_dim": 128,
                        "encoder_ffn_dim": 128,
                        "num_queries": 12,
                        "decoder_attention_heads": 4,
                        "encoder_attention_heads": 4,
                        "backbone_config": dict(RESNET),
                        "use_timm_backbone": False,
                        "backbone": None,
                        "use_pretrained_backbone": False,
                    },
                }
                if s.tiny
                else {}
            ),
        },
        trains=False,
    ),
    Family(
        "mask2former",
        "Mask2FormerForUniversalSegmentation",
        only_pixels,
        "own",
        lambda s: {
            "backbone_config": {
                "model_type": "swin",
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
                **(
                    {
                        "image_size": 64,
                        "embed_dim": 16,
                        "depths": [1, 1, 1, 1],
                        "num_heads": [1, 2, 4, 8],
                        "window_size": 4,
                    }
                    if s.tiny
                    else {}
                ),
            },
            "backbone": None,
            **(
                {
                    "feature_size": 64,
                    "mask_feature_size": 64,
                    "hidden_dim": 64,
                    "encoder_feedforward_dim": 128,
                    "encoder_layers": 2,
                    "decoder_layers": 3,
                    "dim_feedforward": 128,
                    "num_attention_heads": 4,
                    "num_queries": 12,
                }
                if s.tiny
                else {}
            ),
        },
        trains=False,
    ),
    Family(
        "rt-detr",
        "RTDetrForObjectDetection",
        only_pixels,
        "own",
        lambda s: {
            "backbone_config": {
                "model_type": "rt_detr_resnet",
                "out_features": ["stage2", "stage3", "stage4"],
                **(
                    {
                        "embedding_size": 16,
                        "hidden_sizes": [32, 64, 96, 128],
                        "depths": [1, 1, 1, 1],
                        "layer_type": "bottleneck",
                    }
                    if s.tiny
                    else {}
                ),
            },
            **(
                {
                    "encoder_hidden_dim": 64,
                    "encoder_in_channels": [64, 96, 128],
                    "feat_strides": [8, 16, 32],
                    "encoder_ffn_dim": 128,
                    "d_model": 64,
                    "decoder_in_channels": [64, 64, 64],
                    "decoder_ffn_dim": 128,
                    "decoder_layers": 2,
                    "decoder_attention_heads": 4,
                    "encoder_attention_heads": 4,
                    "num_queries": 12,
                    "num_denoising": 0,
                }
                if s.tiny
                else {"num_denoising": 0}
            ),
        },
        trains=False,
    ),
    Family(
        "sam-vision",
        "SamVisionModel",
        only_pixels,
        "vision",
        lambda s: (
            {
                "num_pos_feats": 32,
                "global_attn_indexes": [1, 2],
                "window_size": 4,
                "output_channels": 64,
                "mlp_dim": 256,
            }
            if s.tiny
            else {"global_attn_indexes": [1, 2]}
            if s.shallow
            else {"image_size": 512}
        ),
    ),
    Family(
        "timesformer",
        "TimesformerForVideoClassification",
        clips,
        "vision",
        tiny(num_frames=4),
        changes=FEW_IMAGES,
    ),
    Family(
        "videomae", "VideoMAEForVideoClassification", clips, "vision", tiny(num_frames=4), changes=FEW_IMAGES
    ),
    Family(
        "vivit",
        "VivitForVideoClassification",
        clips,
        "vision",
        tiny(num_frames=4, tubelet_size=[2, 8, 8]),
        changes=FEW_IMAGES,
    ),
    Family(
        "superpoint-encoder",
        "SuperPointForKeypointDetection",
        only_pixels,
        "own",
        trains=False,
        changes=FEW_IMAGES,
    ),
]

AUDIO = [
    Family("wav2vec2", "Wav2Vec2ForCTC", samples, "audio"),
    Family("wav2vec2-conformer", "Wav2Vec2ConformerForCTC", samples, "audio"),
    Family("hubert", "HubertForCTC", samples, "audio"),
    Family(
        "data2vec-audio",
        "Data2VecAudioForCTC",
        samples,
        "audio",
        tiny(conv_pos_kernel_size=9, num_conv_pos_embeddings=2),
    ),
    Family("sew", "SEWForCTC", samples, "audio", tiny(conv_dim=(32,) * 7 + (64,) * 6)),
    Family("sew-d", "SEWDForCTC", samples, "audio", tiny(conv_dim=(32,) * 7 + (64,) * 6)),
    Family("unispeech", "UniSpeechForCTC", samples, "audio"),
    Family("unispeech-sat", "UniSpeechSatForCTC", samples, "audio"),
    Family("wavlm", "WavLMForCTC", samples, "audio"),
    Family(
        "wav2vec2-bert",
        "Wav2Vec2BertForCTC",
        lambda s, c, train: {
            "input_features": rand(s.batch, 48 if s.tiny else 400, c.feature_projection_input_dim),
            **({"labels": randint(c.vocab_size, s.batch, 6, low=5)} if train else {}),
        },
        "audio",
        {"vocab_size": 32},
    ),
    Family(
        "ast",
        "ASTForAudioClassification",
        lambda s, c, train: {
            "input_values": rand(s.batch, c.max_length, c.num_mel_bins),
            **({"labels": randint(2, s.batch)} if train else {}),
        },
        "vision",
        lambda s: (
            {"max_length": 64, "num_mel_bins": 32} if s.tiny else {"max_length": 512} if s.shallow else {}
        ),
    ),
    Family(
        "whisper",
        "WhisperForConditionalGeneration",
        frames,
        "text",
        lambda s: {
            "num_mel_bins": 80,
            "max_source_positions": 50 if s.tiny else 400 if s.shallow else 1500,
            "max_target_positions": 64,
            "pad_token_id": 0,
        },
    ),
    Family(
        "speech-to-text",
        "Speech2TextForConditionalGeneration",
        lambda s, c, train: {
            "input_features": rand(s.batch, 64 if s.tiny else 1000, c.input_feat_per_channel),
            **(
                {"labels": randint(c.vocab_size, s.batch, 16, low=5)}
                if train
                else {"decoder_input_ids": randint(c.vocab_size, s.batch, 16, low=5)}
            ),
        },
        "text",
        {"conv_channels": 64},
    ),
    Family(
        "moonshine",
        "MoonshineForConditionalGeneration",
        lambda s, c, train: {
            "input_values": rand(s.batch, s.samples),
            **(
                {"labels": randint(c.vocab_size, s.batch, 16, low=5)}
                if train
                else {"decoder_input_ids": randint(c.vocab_size, s.batch, 16, low=5)}
            ),
        },
        "text",
    ),
    Family(
        "univnet",
        "UnivNetModel",
        lambda s, c, train: {
            "input_features": rand(s.batch, 16 if s.tiny else 256, c.num_mel_bins),
            "noise_sequence": rand(s.batch, 16 if s.tiny else 256, c.model_in_channels),
        },
        "own",
    ),
    Family(
        "dac",
        "DacModel",
        only_samples,
        "own",
        tiny(
            encoder_hidden_size=16,
            downsampling_ratios=[2, 4, 4],
            upsampling_ratios=[4, 4, 2],
            decoder_hidden_size=128,
            n_codebooks=3,
        ),
        changes={"wide": {"batch": 4}},
        trains=False,
    ),
    Family(
        "encodec",
        "EncodecModel",
        only_samples,
        "own",
        tiny(hidden_size=32, num_filters=8, codebook_dim=32),
        trains=False,
    ),
    Family(
        "mimi",
        "MimiModel",
        only_samples,
        "own",
        tiny(
            hidden_size=64,
            num_filters=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=128,
            codebook_dim=32,
            vector_quantization_hidden_dimension=32,
            head_dim=16,
            num_quantizers=4,
            upsample_groups=64,
        ),
        trains=False,
    ),
    Family(
        "fastspeech2",
        "FastSpeech2ConformerModel",
        lambda s, c, train: {"input_ids": randint(c.vocab_size, s.batch, 16, low=1)},
        "own",
        trains=False,
    ),
]

PAIR = {"tiny": {}, "gpu": {"layers": 12}}


def pair(s: Scale) -> Options:
    """A text and a vision tower."""
    return {"text_config": s.text(), "vision_config": s.vision(), "projection_dim": s.hidden // 2}


MULTIMODAL = [
    Family("clip", "CLIPModel", image_text, "own", pair, changes=PAIR),
    Family("chinese-clip", "ChineseCLIPModel", image_text, "own", pair, changes=PAIR),
    Family(
        "altclip",
        "AltCLIPModel",
        image_text,
        "own",
        lambda s: {**pair(s), "text_config": s.text(project_dim=s.hidden // 2)},
        changes=PAIR,
    ),
    Family(
        "align",
        "AlignModel",
        image_text,
        "own",
        lambda s: {
            "text_config": s.text(),
            "vision_config": {
                "image_size": s.image,
                **({"width_coefficient": 0.5} if s.tiny else {}),
                **({"depth_coefficient": 0.5} if s.shallow else {}),
            },
            "projection_dim": 160 if s.tiny else 640,
        },
        changes=PAIR,
    ),
    Family("siglip", "SiglipModel", image_text, "own", pair, changes=PAIR),
    Family("metaclip2", "MetaClip2Model", image_text, "own", pair, changes=PAIR),
    Family(
        "clipseg",
        "CLIPSegForImageSegmentation",
        lambda s, c, train: {**lm(s, c, False), **only_pixels(s, c, False)},
        "own",
        lambda s: {
            **pair(s),
            "extract_layers": list(range(min(3, s.layers))),
            "reduce_dim": 32,
            "decoder_num_attention_heads": 4,
        },
        changes=PAIR,
    ),
    Family("owlvit", "OwlViTModel", image_text, "own", pair, changes=PAIR),
    Family(
        "groupvit",
        "GroupViTModel",
        image_text,
        "own",
        lambda s: {
            "text_config": s.text(),
            "projection_dim": s.hidden,
            "projection_intermediate_dim": 2 * s.hidden,
            **(
                {
                    "vision_config": {
                        "image_size": 64,
                        "patch_size": 8,
                        "hidden_size": 64,
                        "depths": [2, 2, 2],
                        "num_group_tokens": [16, 4, 0],
                        "num_output_groups": [16, 4, 8],
                        "num_attention_heads": 4,
                        "num_hidden_layers": 6,
                        "intermediate_size": 128,
                    }
                }
                if s.tiny
                else {"vision_config": {"depths": [2, 1, 1]}}
                if s.shallow
                else {}
            ),
        },
        changes=PAIR,
        trains=False,
    ),
    Family(
        "x-clip",
        "XCLIPModel",
        lambda s, c, train: {
            **lm(s, c, False),
            "pixel_values": rand(s.batch, c.vision_config.num_frames, 3, side(s, c), side(s, c)),
            **({"return_loss": True} if train else {}),
        },
        "own",
        lambda s: {
            "text_config": s.text(),
            "vision_config": s.vision(
                num_frames=2, mit_hidden_size=s.hidden, mit_intermediate_size=s.ffn, mit_num_attention_heads=4
            ),
            "projection_dim": s.hidden,
            "prompt_num_attention_heads": 4,
        },
        changes=PAIR,
    ),
    Family(
        "blip",
        "BlipForConditionalGeneration",
        image_lm,
        "own",
        lambda s: {
            "text_config": {
                **s.text(encoder_hidden_size=s.hidden),
                "projection_dim": s.hidden,
                "is_decoder": True,
            },
            "vision_config": s.vision(),
            "image_text_hidden_size": s.hidden,
        },
        changes=PAIR,
    ),
    Family(
        "git",
        "GitForCausalLM",
        image_lm,
        "own",
        lambda s: {**s.text(use_cache=False), "vision_config": s.vision()},
        changes=PAIR,
    ),
    Family(
        "bridgetower",
        "BridgeTowerModel",
        lambda s, c, train: {**lm(s, c, False), **only_pixels(s, c, False)},
        "own",
        lambda s: {
            "hidden_size": s.hidden,
            "num_attention_heads": s.heads,
            "num_hidden_layers": 2,
            "text_config": s.text(),
            "vision_config": s.vision(),
        },
        changes=PAIR,
    ),
    Family(
        "vilt",
        "ViltForQuestionAnswering",
        lambda s, c, train: {
            **lm(s, c, False),
            **only_pixels(s, c, False),
            **({"labels": torch.rand(s.batch, c.num_labels)} if train else {}),
        },
        "own",
        lambda s: {**s.text(), **s.vision(), "max_image_length": -1},
        changes={"tiny": {"tokens": 32}, "gpu": {"layers": 12, "tokens": 32}},
    ),
    Family(
        "visual-bert",
        "VisualBertForPreTraining",
        lambda s, c, train: {
            **lm(s, c, False),
            "visual_embeds": rand(s.batch, 16, c.visual_embedding_dim),
            "visual_attention_mask": torch.ones(s.batch, 16),
            "visual_token_type_ids": torch.ones(s.batch, 16, dtype=torch.long),
            **({"labels": randint(c.vocab_size, s.batch, s.tokens + 16)} if train else {}),
        },
        "text",
        {"visual_embedding_dim": 64},
    ),
    Family(
        "lxmert",
        "LxmertModel",
        lambda s, c, train: {
            **lm(s, c, False),
            "visual_feats": rand(s.batch, 16, c.visual_feat_dim),
            "visual_pos": torch.rand(s.batch, 16, 4),
        },
        "text",
        lambda s: {
            **({"l_layers": 2, "x_layers": 2, "r_layers": 2} if s.shallow else {}),
            **({"visual_feat_dim": 64} if s.tiny else {}),
        },
    ),
    Family(
        "layoutlmv3",
        "LayoutLMv3ForTokenClassification",
        lambda s, c, train: {
            **boxed(s, c, train),
            "pixel_values": rand(s.batch, 3, c.input_size, c.input_size),
        },
        "text",
        lambda s: {
            "coordinate_size": s.hidden // 6,
            "shape_size": s.hidden // 2 - 2 * (s.hidden // 6),
            "input_size": s.image,
            "patch_size": 16,
        },
    ),
    Family(
        "flava",
        "FlavaModel",
        lambda s, c, train: {**lm(s, c, False), **only_pixels(s, c.image_config, False)},
        "own",
        lambda s: {
            "text_config": s.text(),
            "image_config": s.vision(),
            "multimodal_config": s.tower(),
            "hidden_size": s.hidden,
        },
        changes=PAIR,
        trains=False,
    ),
    Family(
        "pix2struct",
        "Pix2StructForConditionalGeneration",
        lambda s, c, train: {
            "flattened_patches": rand(s.batch, 32, c.vision_config.patch_embed_hidden_size + 2).abs(),
            "attention_mask": torch.ones(s.batch, 32),
            "decoder_input_ids": token_ids(s, c),
            **({"labels": token_ids(s, c)} if train else {}),
        },
        "own",
        lambda s: {
            "text_config": {
                "vocab_size": s.vocab,
                "hidden_size": s.hidden,
                "d_kv": s.hidden // s.heads,
                "d_ff": s.ffn,
                "num_layers": s.layers,
                "num_heads": s.heads,
                "use_cache": False,
                "pad_token_id": 0,
                "decoder_start_token_id": 0,
            },
            "vision_config": {
                "hidden_size": s.hidden,
                "d_kv": s.hidden // s.heads,
                "d_ff": s.ffn,
                "num_hidden_layers": s.layers,
                "num_attention_heads": s.heads,
                "patch_embed_hidden_size": 192,
            },
        },
        changes=PAIR,
    ),
    Family(
        "blip2",
        "Blip2ForConditionalGeneration",
        lambda s, c, train: blip2_inputs(s, c, train),
        "own",
        lambda s: {
            "vision_config": s.vision(),
            "qformer_config": s.text(encoder_hidden_size=s.hidden, cross_attention_frequency=2),
            "text_config": {
                "model_type": "opt",
                "vocab_size": s.vocab,
                "hidden_size": s.hidden,
                "word_embed_proj_dim": s.hidden,
                "ffn_dim": s.ffn,
                "num_hidden_layers": s.layers,
                "num_attention_heads": s.heads,
                "max_position_embeddings": 4 * s.tokens,
                "pad_token_id": 0,
                "use_cache": False,
            },
            "num_query_tokens": 8,
            "image_token_index": 4,
        },
        changes=PAIR,
    ),
    Family(
        "llava",
        "LlavaForConditionalGeneration",
        image_slots,
        "own",
        lambda s: {
            "vision_config": {"model_type": "clip_vision_model", **s.vision()},
            "text_config": {"model_type": "llama", **s.text(num_key_value_heads=2, use_cache=False)},
            "image_token_index": 4,
            "image_seq_length": 64,
            "vision_feature_layer": -1,
        },
        changes=PAIR,
    ),
    Family(
        "paligemma",
        "PaliGemmaForConditionalGeneration",
        image_slots,
        "own",
        lambda s: {
            "vision_config": {
                "model_type": "siglip_vision_model",
                **s.vision(projection_dim=s.hidden, vision_use_head=False),
            },
            "text_config": {
                "model_type": "gemma",
                **s.text(num_key_value_heads=2, head_dim=32, use_cache=False),
            },
            "projection_dim": s.hidden,
            "image_token_index": 4,
        },
        changes=PAIR,
    ),
    Family("trocr", "TrOCRForCausalLM", plain_lm, "text"),
    Family(
        "vit-gpt2",
        "VisionEncoderDecoderModel",
        image_to_text,
        "own",
        lambda s: {
            "encoder": {"model_type": "vit", **s.vision()},
            "decoder": {
                "model_type": "gpt2",
                "vocab_size": s.vocab,
                "n_embd": s.hidden,
                "n_layer": s.layers,
                "n_head": s.heads,
                "n_positions": 4 * s.tokens,
                "add_cross_attention": True,
                "is_decoder": True,
                "use_cache": False,
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
        changes=PAIR,
    ),
]


def blip2_inputs(s: Scale, config: Any, train: bool) -> Options:
    """Images and a text that begins with the tokens of the queries."""
    slots = torch.full((s.batch, config.num_query_tokens), config.image_token_index, device="cpu")
    ids = torch.cat([slots, token_ids(s, config)], dim=1)
    labels = {"labels": ids.clone()} if train else {}
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        **only_pixels(s, config, False),
        **labels,
    }


FORECAST = {"prediction_length": 12, "context_length": 24, "num_time_features": 2, "lags_sequence": [1, 2, 3]}

SERIES = [
    Family("autoformer", "AutoformerForPrediction", series, "text", FORECAST),
    Family("informer", "InformerForPrediction", series, "text", FORECAST),
    Family("time-series-transformer", "TimeSeriesTransformerForPrediction", series, "text", FORECAST),
    Family(
        "patchtst",
        "PatchTSTForPrediction",
        plain_series,
        "text",
        {
            "context_length": 96,
            "prediction_length": 24,
            "num_input_channels": 4,
            "patch_length": 8,
            "patch_stride": 8,
            "do_mask_input": False,
        },
        changes=MANY,
    ),
    Family(
        "patchtsmixer",
        "PatchTSMixerForPrediction",
        plain_series,
        "text",
        {
            "context_length": 96,
            "prediction_length": 24,
            "num_input_channels": 4,
            "patch_length": 8,
            "patch_stride": 8,
        },
        changes=MANY,
    ),
    Family(
        "decision-transformer",
        "DecisionTransformerModel",
        lambda s, c, train: {
            "states": rand(s.batch, 20, c.state_dim),
            "actions": rand(s.batch, 20, c.act_dim),
            "rewards": rand(s.batch, 20, 1),
            "returns_to_go": rand(s.batch, 20, 1),
            "timesteps": torch.arange(20).repeat(s.batch, 1),
            "attention_mask": torch.ones(s.batch, 20, dtype=torch.long),
        },
        "text",
        {"n_positions": 128, "max_ep_len": 512},
    ),
]

MORE_IMAGES = {"gpu": {"batch": 16}, "wide": {"batch": 24}}
"""Small nets over images need memory for what they compute rather than for weights."""

FAMILIES = [
    *ENCODERS,
    *DECODERS,
    *SEQ2SEQ,
    *(replace(row, changes={**MORE_IMAGES, **row.changes}) for row in VISION),
    *AUDIO,
    *MULTIMODAL,
    *SERIES,
]


# torchvision and timm: a name in their own registry, the side of a tiny image, a larger sibling for a GPU.


def classes_loss(output: Any) -> Tensor:
    """Cross-entropy of the logits (also of those of a side branch) with fixed classes, else `loss_of`."""
    found = [each for each in tensors_of(output) if each.is_floating_point() and each.requires_grad]
    if not all(each.ndim == 2 for each in found):
        return loss_of(output)
    targets = torch.arange(found[0].shape[0], device=found[0].device)
    return sum_of(nn.functional.cross_entropy(each.float(), targets % each.shape[1]) for each in found)


DEPTHS = ("depth", "depths", "layers", "stages", "local_up_to_layer")
"""Those of timm's options that say how many layers there are."""


@dataclass(frozen=True)
class ImageNet:
    """A row of torchvision or timm."""

    name: str
    side: int = 64
    gpu: str = ""
    options: Options = field(default_factory=dict)
    gpu_batch: int = 32
    gpu_side: int = 224
    frames: int = 0
    trains: bool = True
    wide: float = 1
    """How many times as many images as usual there are at "wide": what a net keeps of an image differs widely."""

    def image(self, model: nn.Module, scale: Scale, train: bool) -> Tensor:
        """A batch of images or of videos."""
        size = self.side if scale.tiny else self.gpu_side
        batch = scale.batch if scale.tiny else self.gpu_batch
        if scale.name == "wide":
            batch = self.wide_batch(model, train)
            published = getattr(model, "default_cfg", {})  # timm says for what images a model is made
            size = published["input_size"][-1] if published else size
        video = (self.frames,) if self.frames else ()
        return rand(batch, 3, *video, size, size)

    def wide_batch(self, model: nn.Module, train: bool) -> int:
        """For "wide", more images for the nets that have fewer weights, and that are narrower; in training fewer,
        for a step keeps those of all layers."""
        weights = 4 * sum(each.numel() for each in model.parameters())
        times = 4 if weights < 12e6 else 2 if weights < 50e6 else 1
        batch = self.gpu_batch * (min(times, 2) / 4 if train else times) * self.wide
        return max(2, round(batch))

    def at(self, scale: Scale) -> str:
        """The name in the library: only "gpu" has the larger sibling."""
        return self.name if scale.shallow or not self.gpu else self.gpu

    def make_torchvision(self, scale: Scale, train: bool) -> Built:
        """The model of torchvision."""
        module = library("torchvision.models")
        name = self.at(scale)
        if name not in module.list_models():
            raise Unavailable(f"torchvision has no {name}")
        dense = ("fcn", "deeplab", "lraspp")
        options = {
            **(self.options if scale.shallow else {}),
            **({"weights_backbone": None} if name.startswith(dense) else {}),
        }
        if not name.startswith("raft"):
            options["num_classes"] = 10
        model = module.get_model(name, weights=None, **options)
        if scale.tiny and hasattr(model, "classifier"):
            narrow_head(model.classifier)
        if self.name.startswith("raft"):
            images = self.image(model, scale, train), self.image(model, scale, train)
            return Built(model, images, {"num_flow_updates": 3}, loss_of)
        return Built(model, (self.image(model, scale, train),), {}, classes_loss)

    def make_timm(self, scale: Scale, train: bool) -> Built:
        """The model of timm."""
        module = library("timm")
        name = self.at(scale)
        if name not in module.list_models():
            raise Unavailable(f"timm {module.__version__} has no {name}")
        depths = {key: self.options[key] for key in DEPTHS if key in self.options}
        options = self.options if scale.tiny else depths if scale.shallow else {}
        model = module.create_model(name, pretrained=False, num_classes=10, **options)
        return Built(model, (self.image(model, scale, train),), {}, classes_loss)


def narrow_head(head: nn.Module) -> None:
    """Make the wide hidden layers of an old classifier (AlexNet, VGG) 256 wide: each is most of the weights."""
    if not isinstance(head, nn.Sequential):
        return
    wide = [i for i, layer in enumerate(head) if isinstance(layer, nn.Linear) and layer.in_features > 4000]
    for place in wide:
        layer = head[place]
        inside = layer.in_features if place == wide[0] else 256
        outside = layer.out_features if place == wide[-1] else 256
        head[place] = nn.Linear(inside, outside)


TORCHVISION = [
    ImageNet("alexnet", 96),
    ImageNet("convnext_tiny", 64, "convnext_large"),
    ImageNet("densenet121", 64, "densenet161"),
    ImageNet("efficientnet_b0", 64, "efficientnet_b7"),
    ImageNet("efficientnet_v2_s", 64, "efficientnet_v2_l"),
    ImageNet("googlenet", 96, options={"init_weights": False}),
    ImageNet("inception_v3", 128, options={"init_weights": False, "aux_logits": False}, gpu_side=299),
    ImageNet("maxvit_t", 224, wide=0.5),
    ImageNet("mnasnet0_5", 64, "mnasnet1_3"),
    ImageNet("mobilenet_v2", 64),
    ImageNet("mobilenet_v3_small", 64, "mobilenet_v3_large"),
    ImageNet("regnet_x_400mf", 64, "regnet_x_32gf"),
    ImageNet("regnet_y_400mf", 64, "regnet_y_32gf"),
    ImageNet("resnet18", 64, "resnet152"),
    ImageNet("resnext50_32x4d", 64, "resnext101_64x4d"),
    ImageNet("wide_resnet50_2", 32, "wide_resnet101_2"),
    ImageNet("shufflenet_v2_x1_0", 64, "shufflenet_v2_x2_0"),
    ImageNet("squeezenet1_1", 64, "squeezenet1_0"),
    ImageNet("swin_t", 64, "swin_b"),
    ImageNet("swin_v2_t", 64, "swin_v2_b"),
    ImageNet("vgg11_bn", 64, "vgg19_bn"),
    ImageNet("vit_b_32", 224, "vit_l_16"),
    ImageNet("fcn_resnet50", 64, "fcn_resnet101", gpu_batch=8),
    ImageNet("deeplabv3_mobilenet_v3_large", 64, "deeplabv3_resnet101", gpu_batch=8, wide=2),
    ImageNet("lraspp_mobilenet_v3_large", 64, gpu_batch=16),
    ImageNet("r3d_18", 32, frames=8, gpu_side=112, gpu_batch=16),
    ImageNet("mc3_18", 32, frames=8, gpu_side=112, gpu_batch=16),
    ImageNet("r2plus1d_18", 32, frames=8, gpu_side=112, gpu_batch=16),
    ImageNet("s3d", 224, frames=14, gpu_batch=8, trains=False),
    ImageNet("swin3d_t", 32, "swin3d_b", frames=8, gpu_batch=4),
    ImageNet("raft_small", 128, "raft_large", gpu_batch=4),
]

TIMM = [
    ImageNet(
        "beit_base_patch16_224",
        64,
        "beit_large_patch16_224",
        {"depth": 2, "embed_dim": 128, "num_heads": 4, "img_size": 64},
    ),
    ImageNet("bat_resnext26ts", 256, gpu_side=256),
    ImageNet("halonet26t", 256, "halonet50ts", gpu_side=256),
    ImageNet("botnet26t_256", 256, "botnet50ts_256", gpu_side=256),
    ImageNet("lambda_resnet26t", 128, gpu_side=256),
    ImageNet("repvgg_a0", 64, "repvgg_b3"),
    ImageNet("mobileone_s0", 64, "mobileone_s4"),
    ImageNet("cait_xxs24_224", 64, "cait_s36_384", {"depth": 4, "img_size": 64}, gpu_side=384),
    ImageNet("coat_tiny", 64, "coat_small", {"img_size": 64}, wide=0.5),
    ImageNet("convit_tiny", 64, "convit_base", {"depth": 6, "local_up_to_layer": 4, "img_size": 64}),
    ImageNet("convmixer_768_32", 64, "convmixer_1536_20", wide=0.5),
    ImageNet("crossvit_9_240", 240, "crossvit_base_240", gpu_side=240),
    ImageNet("cspresnet50", 64, "cspdarknet53", gpu_side=256),
    ImageNet("davit_tiny", 64, "davit_base", {"depths": (1, 1, 2, 1)}),
    ImageNet("dla34", 64, "dla169"),
    ImageNet("dm_nfnet_f0", 64, "dm_nfnet_f3"),
    ImageNet("dpn48b", 64, "dpn131"),
    ImageNet("edgenext_xx_small", 64, "edgenext_base"),
    ImageNet("efficientformer_l1", 224, "efficientformer_l7"),
    ImageNet("efficientformerv2_s0", 224, "efficientformerv2_l"),
    ImageNet("efficientvit_b1", 64, "efficientvit_b3"),
    ImageNet("efficientvit_m0", 64, "efficientvit_m5", {"img_size": 64}, wide=4),
    ImageNet("eva02_tiny_patch14_224", 56, "eva02_large_patch14_224", {"depth": 4, "img_size": 56}),
    ImageNet("fastvit_t8", 64, "fastvit_ma36", gpu_side=256),
    ImageNet("gcvit_xxtiny", 224, "gcvit_base"),
    ImageNet("ghostnet_050", 64, "ghostnetv2_160"),
    ImageNet("gmlp_ti16_224", 64, "gmlp_b16_224", {"img_size": 64}, wide=2),
    ImageNet("hardcorenas_a", 64, "hardcorenas_f"),
    ImageNet("hrnet_w18_small", 64, "hrnet_w64"),
    ImageNet("inception_next_atto", 64, "inception_next_base"),
    ImageNet("inception_resnet_v2", 96, gpu_side=299),
    ImageNet("inception_v4", 96, gpu_side=299),
    ImageNet("mambaout_femto", 64, "mambaout_base"),
    ImageNet("maxxvit_rmlp_nano_rw_256", 64, "maxxvitv2_rmlp_base_rw_224", {"img_size": 64}),
    ImageNet("caformer_s18", 64, "caformer_b36"),
    ImageNet("mixer_s32_224", 64, "mixer_l16_224", {"img_size": 64}, wide=2),
    ImageNet("mobilenetv4_conv_small", 64, "mobilenetv4_conv_large"),
    ImageNet("mvitv2_tiny", 64, "mvitv2_large", {"img_size": 64}),
    ImageNet("nasnetalarge", 64, gpu_side=331, gpu_batch=8, wide=0.5),
    ImageNet("nest_tiny_jx", 224, "nest_base_jx"),
    ImageNet("nextvit_small", 64, "nextvit_large"),
    ImageNet("pit_ti_224", 64, "pit_b_224", {"depth": [1, 2, 2], "img_size": 64}),
    ImageNet("pnasnet5large", 64, gpu_side=331, gpu_batch=8, wide=0.5),
    ImageNet("rdnet_tiny", 64, "rdnet_large"),
    ImageNet("repghostnet_100", 64, "repghostnet_200"),
    ImageNet("repvit_m0_9", 64, "repvit_m3"),
    ImageNet("res2net50_14w_8s", 64, "res2net101_26w_4s"),
    ImageNet("resmlp_12_224", 64, "resmlp_big_24_224", {"img_size": 64}),
    ImageNet("resnest14d", 64, "resnest269e"),
    ImageNet("resnetv2_50", 64, "resnetv2_101x3_bit"),
    ImageNet("rexnet_100", 64, "rexnet_300"),
    ImageNet("selecsls42", 64, "selecsls84"),
    ImageNet("seresnet18", 64, "senet154"),
    ImageNet("sequencer2d_s", 64, "sequencer2d_l", {"layers": (1, 1, 2, 1)}),
    ImageNet("shvit_s1", 64, "shvit_s4", wide=2),
    ImageNet("skresnet18", 64, "skresnext50_32x4d"),
    ImageNet("starnet_s1", 64, "starnet_s4"),
    ImageNet("tiny_vit_5m_224", 64, "tiny_vit_21m_224"),
    ImageNet("tnt_s_legacy_patch16_224", 64, "tnt_b_patch16_224", {"depth": 4, "img_size": 64}),
    ImageNet("tresnet_m", 64, "tresnet_xl"),
    ImageNet("twins_svt_small", 64, "twins_svt_large", {"depths": (1, 1, 2, 1), "img_size": 64}),
    ImageNet("visformer_tiny", 64, "visformer_small", {"img_size": 64}, wide=2),
    ImageNet("vit_relpos_small_patch16_224", 64, "vit_relpos_base_patch16_224", {"depth": 4, "img_size": 64}),
    ImageNet("vitamin_small_224", 64, "vitamin_large_224", {"img_size": 64}, wide=0.5),
    ImageNet("volo_d1_224", 64, "volo_d5_224", {"img_size": 64}),
    ImageNet("ese_vovnet19b_slim", 64, "ese_vovnet99b"),
    ImageNet("xception41", 64, "xception71", gpu_side=299, wide=0.5),
    ImageNet("xcit_nano_12_p16_224", 64, "xcit_large_24_p16_224", {"depth": 4}, wide=2),
    ImageNet("hiera_tiny_224", 64, "hiera_large_224", {"stages": (1, 1, 2, 1), "img_size": 64}),
    ImageNet("lcnet_100", 64, "lcnet_150"),
]


# diffusers: a class, its options and its call; a denoiser learns to give the noise back.


@dataclass(frozen=True)
class Denoiser:
    """A row of diffusers: the config of the tiny model, and what is larger on a GPU."""

    name: str
    model: str
    options: Options
    inputs: Callable[[int], Options]
    gpu: Options
    trains: bool = True
    wide: float = 1
    """How many times the usual batch there is at "wide"."""

    def make(self, scale: Scale, train: bool) -> Built:
        """The model and its call."""
        model_class = attribute(library("diffusers"), self.model)
        taken = inspect.signature(model_class.__init__).parameters
        larger = {key: value for key, value in self.gpu.items() if not (scale.shallow and "layers" in key)}
        options = self.options if scale.tiny else {**self.options, **larger}
        model = model_class(**{key: value for key, value in options.items() if key in taken})
        batch = {"tiny": 2, "wide": max(2, round((8 if train else 16) * self.wide)), "gpu": 32}[scale.name]
        return Built(model, (), self.inputs(batch), loss_of)


def steps(batch: int) -> Tensor:
    """Timesteps of a diffusion."""
    return torch.arange(1, batch + 1, device="cpu") * 10


UNET = {
    "sample_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "cross_attention_dim": 32,
    "attention_head_dim": 8,
}
LARGE_UNET = {
    "block_out_channels": (320, 640),
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "cross_attention_dim": 32,
}
VAE = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
DIT = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 3}
LARGE_DIT = {"num_attention_heads": 16, "attention_head_dim": 64, "num_layers": 16}

DIFFUSERS = [
    Denoiser(
        "unet2d",
        "UNet2DModel",
        {
            **UNET,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda b: {"sample": rand(b, 4, 16, 16), "timestep": steps(b)},
        LARGE_UNET,
    ),
    Denoiser(
        "unet2d-condition",
        "UNet2DConditionModel",
        {
            **UNET,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        lambda b: {
            "sample": rand(b, 4, 16, 16),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
        },
        LARGE_UNET,
    ),
    Denoiser(
        "unet3d-condition",
        "UNet3DConditionModel",
        {
            **UNET,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        lambda b: {
            "sample": rand(b, 4, 4, 16, 16),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
        },
        LARGE_UNET,
        wide=0.25,
    ),
    Denoiser(
        "unet-spatio-temporal",
        "UNetSpatioTemporalConditionModel",
        {
            **UNET,
            "in_channels": 8,
            "num_attention_heads": (2, 4),
            "addition_time_embed_dim": 32,
            "projection_class_embeddings_input_dim": 96,
            "block_out_channels": (32, 64),
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        },
        lambda b: {
            "sample": rand(b, 2, 8, 16, 16),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 1, 32),
            "added_time_ids": rand(b, 3),
        },
        {"block_out_channels": (320, 640), "layers_per_block": 2, "num_attention_heads": (5, 10)},
        wide=0.5,
    ),
    Denoiser(
        "unet1d",
        "UNet1DModel",
        {
            "sample_size": 256,
            "in_channels": 8,
            "out_channels": 8,
            "extra_in_channels": 64,
            "block_out_channels": (32, 32, 64),
        },
        lambda b: {"sample": rand(b, 8, 256), "timestep": steps(b)},
        {"block_out_channels": (256, 512, 512), "extra_in_channels": 512},
    ),
    Denoiser(
        "controlnet",
        "ControlNetModel",
        {
            **UNET,
            "conditioning_embedding_out_channels": (16, 32),
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        },
        lambda b: {
            "sample": rand(b, 4, 16, 16),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
            "controlnet_cond": rand(b, 3, 32, 32),
        },
        LARGE_UNET,
    ),
    Denoiser(
        "autoencoder-kl",
        "AutoencoderKL",
        VAE,
        lambda b: {"sample": rand(b, 3, 32, 32)},
        {"block_out_channels": (256, 512), "layers_per_block": 2, "norm_num_groups": 32},
    ),
    Denoiser(
        "vq",
        "VQModel",
        {**VAE, "latent_channels": 3, "num_vq_embeddings": 64},
        lambda b: {"sample": rand(b, 3, 32, 32)},
        {"block_out_channels": (256, 512), "norm_num_groups": 32},
        trains=False,
    ),
    Denoiser(
        "autoencoder-tiny",
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (32, 32),
            "decoder_block_out_channels": (32, 32),
            "num_encoder_blocks": (1, 2),
            "num_decoder_blocks": (2, 1),
        },
        lambda b: {"sample": rand(b, 3, 32, 32)},
        {"encoder_block_out_channels": (512, 512), "decoder_block_out_channels": (512, 512)},
    ),
    Denoiser(
        "autoencoder-dc",
        "AutoencoderDC",
        {
            "in_channels": 3,
            "latent_channels": 8,
            "attention_head_dim": 8,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (32, 64),
            "decoder_block_out_channels": (32, 64),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
            "downsample_block_type": "conv",
            "upsample_block_type": "interpolate",
            "decoder_norm_types": "rms_norm",
            "decoder_act_fns": "silu",
        },
        lambda b: {"sample": rand(b, 3, 32, 32)},
        {"encoder_block_out_channels": (512, 1024), "decoder_block_out_channels": (512, 1024)},
    ),
    Denoiser(
        "dit",
        "DiTTransformer2DModel",
        {
            **DIT,
            "in_channels": 4,
            "out_channels": 8,
            "sample_size": 16,
            "patch_size": 2,
            "num_embeds_ada_norm": 100,
            "norm_num_groups": 8,
        },
        lambda b: {
            "hidden_states": rand(b, 4, 16, 16),
            "timestep": steps(b),
            "class_labels": randint(100, b),
        },
        LARGE_DIT,
    ),
    Denoiser(
        "pixart",
        "PixArtTransformer2DModel",
        {
            **DIT,
            "in_channels": 4,
            "out_channels": 8,
            "cross_attention_dim": 64,
            "sample_size": 16,
            "patch_size": 2,
            "caption_channels": 32,
            "use_additional_conditions": False,
        },
        lambda b: {
            "hidden_states": rand(b, 4, 16, 16),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
        {**LARGE_DIT, "cross_attention_dim": 1024},
    ),
    Denoiser(
        "sd3",
        "SD3Transformer2DModel",
        {
            **DIT,
            "sample_size": 16,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 64,
            "pooled_projection_dim": 64,
            "pos_embed_max_size": 24,
        },
        lambda b: {
            "hidden_states": rand(b, 4, 16, 16),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
            "pooled_projections": rand(b, 64),
        },
        {**LARGE_DIT, "caption_projection_dim": 1024},
    ),
    Denoiser(
        "flux",
        "FluxTransformer2DModel",
        {
            **DIT,
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 2,
            "num_single_layers": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (4, 4, 8),
            "guidance_embeds": False,
        },
        lambda b: {
            "hidden_states": rand(b, 64, 4),
            "timestep": torch.rand(b, device="cpu"),
            "encoder_hidden_states": rand(b, 8, 32),
            "pooled_projections": rand(b, 32),
            "img_ids": torch.zeros(64, 3, device="cpu"),
            "txt_ids": torch.zeros(8, 3, device="cpu"),
        },
        {**LARGE_DIT, "num_layers": 6, "num_single_layers": 6, "axes_dims_rope": (16, 24, 24)},
    ),
    Denoiser(
        "aura-flow",
        "AuraFlowTransformer2DModel",
        {
            **DIT,
            "sample_size": 16,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_mmdit_layers": 2,
            "num_single_dit_layers": 2,
            "joint_attention_dim": 32,
            "caption_projection_dim": 64,
            "pos_embed_max_size": 256,
        },
        lambda b: {
            "hidden_states": rand(b, 4, 16, 16),
            "timestep": torch.rand(b, device="cpu"),
            "encoder_hidden_states": rand(b, 8, 32),
        },
        {**LARGE_DIT, "caption_projection_dim": 1024, "num_mmdit_layers": 4, "num_single_dit_layers": 8},
    ),
    Denoiser(
        "sana",
        "SanaTransformer2DModel",
        {
            **DIT,
            "in_channels": 4,
            "out_channels": 4,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": 64,
            "caption_channels": 32,
            "sample_size": 16,
            "patch_size": 1,
        },
        lambda b: {
            "hidden_states": rand(b, 4, 16, 16),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
        },
        {
            **LARGE_DIT,
            "num_cross_attention_heads": 16,
            "cross_attention_head_dim": 64,
            "cross_attention_dim": 1024,
        },
    ),
    Denoiser(
        "latte",
        "LatteTransformer3DModel",
        {
            **DIT,
            "in_channels": 4,
            "out_channels": 8,
            "sample_size": 8,
            "patch_size": 2,
            "num_layers": 2,
            "cross_attention_dim": 64,
            "caption_channels": 32,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "video_length": 4,
        },
        lambda b: {
            "hidden_states": rand(b, 4, 4, 8, 8),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
            "enable_temporal_attentions": True,
        },
        {**LARGE_DIT, "cross_attention_dim": 1024},
    ),
    Denoiser(
        "cogvideox",
        "CogVideoXTransformer3DModel",
        {
            **DIT,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 32,
            "text_embed_dim": 32,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 9,
            "patch_size": 2,
            "temporal_compression_ratio": 4,
            "max_text_seq_length": 8,
        },
        lambda b: {
            "hidden_states": rand(b, 3, 4, 8, 8),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
        },
        LARGE_DIT,
    ),
    Denoiser(
        "ltx-video",
        "LTXVideoTransformer3DModel",
        {**DIT, "in_channels": 8, "out_channels": 8, "cross_attention_dim": 64, "caption_channels": 32},
        lambda b: {
            "hidden_states": rand(b, 64, 8),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
            "encoder_attention_mask": torch.ones(b, 8, dtype=torch.bool, device="cpu"),
            "num_frames": 4,
            "height": 4,
            "width": 4,
        },
        {**LARGE_DIT, "cross_attention_dim": 1024},
    ),
    Denoiser(
        "wan",
        "WanTransformer3DModel",
        {
            **DIT,
            "patch_size": (1, 2, 2),
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 32,
            "freq_dim": 32,
            "ffn_dim": 128,
            "cross_attn_norm": True,
            "qk_norm": "rms_norm_across_heads",
            "rope_max_seq_len": 32,
        },
        lambda b: {
            "hidden_states": rand(b, 4, 2, 16, 16),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
        },
        {**LARGE_DIT, "ffn_dim": 4096},
    ),
    Denoiser(
        "hunyuan-dit",
        "HunyuanDiT2DModel",
        {
            **DIT,
            "sample_size": 16,
            "patch_size": 2,
            "in_channels": 4,
            "hidden_size": 64,
            "num_layers": 8,
            "cross_attention_dim": 32,
            "cross_attention_dim_t5": 32,
            "pooled_projection_dim": 16,
            "text_len": 8,
            "text_len_t5": 8,
            "activation_fn": "gelu-approximate",
        },
        lambda b: {
            "hidden_states": rand(b, 4, 16, 16),
            "timestep": steps(b).float(),
            "encoder_hidden_states": rand(b, 8, 32),
            "text_embedding_mask": torch.ones(b, 8, device="cpu"),
            "encoder_hidden_states_t5": rand(b, 8, 32),
            "text_embedding_mask_t5": torch.ones(b, 8, device="cpu"),
            "image_meta_size": rand(b, 6),
            "style": torch.zeros(b, dtype=torch.long, device="cpu"),
            "image_rotary_emb": (rand(64, 16), rand(64, 16)),
        },
        {"num_attention_heads": 64, "hidden_size": 1024, "num_layers": 16},
    ),
    Denoiser(
        "uvit",
        "UVit2DModel",
        {
            "hidden_size": 64,
            "cond_embed_dim": 32,
            "encoder_hidden_size": 32,
            "micro_cond_encode_dim": 16,
            "micro_cond_embed_dim": 80,
            "block_out_channels": 64,
            "num_res_blocks": 1,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "vocab_size": 256,
            "codebook_size": 256,
            "sample_size": 16,
            "block_num_heads": 4,
            "in_channels": 64,
        },
        lambda b: {
            "input_ids": randint(256, b, 16, 16),
            "encoder_hidden_states": rand(b, 8, 32),
            "pooled_text_emb": rand(b, 32),
            "micro_conds": rand(b, 5),
        },
        {"hidden_size": 1024, "num_hidden_layers": 22, "num_attention_heads": 16, "intermediate_size": 2816},
    ),
    Denoiser(
        "stable-audio",
        "StableAudioDiTModel",
        {
            **DIT,
            "sample_size": 64,
            "in_channels": 8,
            "out_channels": 8,
            "num_key_value_attention_heads": 2,
            "cross_attention_dim": 32,
            "cross_attention_input_dim": 32,
            "global_states_input_dim": 32,
            "time_proj_dim": 32,
        },
        lambda b: {
            "hidden_states": rand(b, 8, 64),
            "timestep": steps(b),
            "encoder_hidden_states": rand(b, 8, 32),
            "global_hidden_states": rand(b, 1, 32),
        },
        {**LARGE_DIT, "num_key_value_attention_heads": 8, "cross_attention_dim": 512},
    ),
    Denoiser(
        "prior",
        "PriorTransformer",
        {**DIT, "embedding_dim": 32, "num_embeddings": 8, "additional_embeddings": 4},
        lambda b: {
            "hidden_states": rand(b, 32),
            "timestep": steps(b),
            "proj_embedding": rand(b, 32),
            "encoder_hidden_states": rand(b, 8, 32),
        },
        LARGE_DIT,
    ),
]

CASES: list[Case] = [
    *(Case(f"transformers/{row.name}", "transformers", row.make, row.trains) for row in FAMILIES),
    *(
        Case(f"torchvision/{row.name}", "torchvision", row.make_torchvision, row.trains)
        for row in TORCHVISION
    ),
    *(Case(f"timm/{row.name}", "timm", row.make_timm, row.trains) for row in TIMM),
    *(Case(f"diffusers/{row.name}", "diffusers", row.make, row.trains) for row in DIFFUSERS),
]
