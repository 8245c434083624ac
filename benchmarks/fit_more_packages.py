"""Models of further packages, for `fit_sweep.py --catalogue packages`: what no case of `fit_packages.py` comes from.

Agents, flows, equations, spikes, weights that are drawn or made by other nets, experts, state spaces, sound, OCR, points,
proteins, tables. As there, they were written down before the first of them was tried with `fit`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fit_models import Case, classes_loss, library, rand, randint
from benchmarks.fit_packages import Later, Packaged, images, sounds, tokens, told

os.environ.setdefault("KERAS_BACKEND", "torch")

HERE = "benchmarks.fit_more_packages"
BOX = Later("gymnasium.spaces:Box", {"low": -1.0, "high": 1.0, "shape": (12,)})
PIXELS = Later("gymnasium.spaces:Box", {"low": 0, "high": 255, "shape": (4, 84, 84), "dtype": "uint8"})
FOUR = Later("gymnasium.spaces:Discrete", {"n": 4})
RATE: Callable[[float], float] = lambda _: 1e-3  # noqa: E731 # an option that is a function


def made(
    name: str, make: Callable[[], nn.Module], inputs: Callable[[], tuple[Any, ...]], **more: Any
) -> Packaged:
    """A model that takes some lines to make."""
    return Packaged(name, f"{HERE}:{make.__name__}", {}, inputs, **more)


def points(count: int = 24) -> Tensor:
    """Places of atoms, two molecules."""
    return rand(2, count, 3)


# Flows.


def real_nvp() -> nn.Module:
    """Coupling layers of normflows."""
    nf = library("normflows")
    mask, flows = torch.tensor([1.0, 0.0, 1.0, 0.0]), []
    for i in range(4):
        nets = [nf.nets.MLP([4, 32, 4], init_zeros=True) for _ in range(2)]
        flows += [nf.flows.MaskedAffineFlow(mask if i % 2 else 1 - mask, *nets), nf.flows.ActNorm(4)]
    return nf.NormalizingFlow(nf.distributions.DiagGaussian(4), flows)


def spline_flow() -> nn.Module:
    """Rational quadratic splines of nflows."""
    transforms, flows = library("nflows.transforms"), library("nflows.flows.base")
    autoregressive = transforms.MaskedPiecewiseRationalQuadraticAutoregressiveTransform
    chain = [transforms.ReversePermutation(features=4)]
    chain += [autoregressive(features=4, hidden_features=32, tails="linear", tail_bound=3.0)]
    normal = library("nflows.distributions.normal").StandardNormal(shape=[4])
    return flows.Flow(transforms.CompositeTransform(chain * 2), normal)


def invertible_net() -> nn.Module:
    """Coupling blocks of FrEIA."""
    net = library("FrEIA.framework").SequenceINN(8)
    for _ in range(3):
        net.append(
            library("FrEIA.modules").AllInOneBlock,
            subnet_constructor=lambda c_in, c_out: nn.Sequential(
                nn.Linear(c_in, 32), nn.ReLU(), nn.Linear(32, c_out)
            ),
        )
    return net


# Equations.


class Drift(nn.Module):
    """Drift and diffusion of a stochastic differential equation."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.mu, self.sigma = nn.Linear(4, 4), nn.Linear(4, 4)

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        """Drift."""
        return self.mu(y).tanh()

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        """Diffusion."""
        return 0.1 * self.sigma(y).sigmoid()


class Stochastic(nn.Module):
    """Steps of torchsde."""

    def __init__(self) -> None:
        super().__init__()
        self.sde = Drift()

    def forward(self, start: Tensor) -> Tensor:
        sdeint = library("torchsde").sdeint
        return sdeint(self.sde, start, torch.linspace(0, 1, 4), dt=0.1, method="euler")


class Solved(nn.Module):
    """An adaptive solver of torchode."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, start: Tensor) -> Tensor:
        ode = library("torchode")
        term = ode.ODETerm(lambda t, y: self.net(y))
        controller = ode.IntegralController(atol=1e-4, rtol=1e-3, term=term)
        solver = ode.AutoDiffAdjoint(ode.Tsit5(term=term), controller)
        times = torch.linspace(0, 1, 5).repeat(len(start), 1)
        return solver.solve(ode.InitialValueProblem(y0=start, t_eval=times)).ys


class Equilibrium(nn.Module):
    """A fixed point of torchdeq."""

    def __init__(self) -> None:
        super().__init__()
        self.deq = library("torchdeq").get_deq(f_solver="fixed_point_iter", f_max_iter=12, b_max_iter=12)
        self.inner, self.outer = nn.Linear(32, 32), nn.Linear(16, 32)
        with torch.no_grad():
            self.inner.weight.mul_(0.3)

    def forward(self, x: Tensor) -> Tensor:
        given = self.outer(x)
        answers, _ = self.deq(lambda z: torch.tanh(self.inner(z) + given), torch.zeros_like(given))
        return answers[-1]


# Spikes.


class Spikes(nn.Module):
    """Leaky neurons of snntorch, ten steps of time."""

    def __init__(self) -> None:
        super().__init__()
        leaky = library("snntorch").Leaky
        self.one, self.two = nn.Linear(16, 64), nn.Linear(64, 8)
        self.lif1, self.lif2 = leaky(beta=0.9), leaky(beta=0.8, learn_beta=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spikes, membranes = [], []
        for _ in range(10):
            spike, mem1 = self.lif1(self.one(x), mem1)
            spike, mem2 = self.lif2(self.two(spike), mem2)
            spikes.append(spike)
            membranes.append(mem2)
        return torch.stack(spikes), torch.stack(membranes)


def norse_net() -> nn.Module:
    """Cells of norse with their states."""
    norse = library("norse.torch")
    return norse.SequentialState(
        nn.Conv2d(1, 8, 3), norse.LIFCell(), nn.Flatten(1), nn.Linear(8 * 26 * 26, 10), norse.LICell()
    )


def spikingjelly_net() -> nn.Module:
    """Neurons of spikingjelly that see all steps of time at once."""
    neuron, layer = (library(f"spikingjelly.activation_based.{each}") for each in ("neuron", "layer"))
    net = nn.Sequential(
        layer.Conv2d(1, 8, 3, step_mode="m"),
        layer.BatchNorm2d(8, step_mode="m"),
        neuron.LIFNode(step_mode="m"),
        layer.Flatten(step_mode="m"),
        layer.Linear(8 * 14 * 14, 10, step_mode="m"),
        neuron.IFNode(step_mode="m"),
    )
    return net


def reset_and_call(net: Any, x: Tensor) -> Tensor:
    """Neurons begin anew, as they do before every batch."""
    library("spikingjelly.activation_based.functional").reset_net(net)
    return net(x)


# Weights that are drawn, or made by other nets.


class Bayesian(nn.Module):
    """Weights of bayesian-torch, and how far they are from their prior."""

    def __init__(self) -> None:
        super().__init__()
        layers = library("bayesian_torch.layers")
        self.conv = layers.Conv2dReparameterization(3, 8, 3)
        self.head = layers.LinearFlipout(8, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, one = self.conv(x)
        x, two = self.head(x.relu().mean((2, 3)))
        return x, one + two


def blitz_net() -> nn.Module:
    """Weights of blitz."""
    modules = library("blitz.modules")
    return nn.Sequential(modules.BayesianLinear(16, 64), nn.ReLU(), modules.BayesianLinear(64, 8))


def torchbnn_net() -> nn.Module:
    """Weights of torchbnn."""
    bayes = library("torchbnn").BayesLinear
    options = {"prior_mu": 0.0, "prior_sigma": 0.1}
    return nn.Sequential(
        bayes(in_features=16, out_features=64, **options),
        nn.ReLU(),
        bayes(in_features=64, out_features=8, **options),
    )


class Hyper(nn.Module):
    """A net of hypnettorch that makes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.main = library("hypnettorch.mnets").MLP(
            n_in=16, n_out=4, hidden_layers=[32], no_weights=True, verbose=False
        )
        self.hyper = library("hypnettorch.hnets").HMLP(
            self.main.param_shapes, num_cond_embs=3, layers=(32,), verbose=False
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x, weights=self.hyper(cond_id=1))


def lora_net() -> nn.Module:
    """Adapters of loralib; those of a trained net are merged by `eval()`."""
    lora = library("loralib")
    net = nn.Sequential(
        lora.Embedding(64, 32, r=4),
        lora.MergedLinear(32, 96, r=4, enable_lora=[True, False, True]),
        nn.ReLU(),
        lora.Linear(96, 16, r=4),
    )
    lora.mark_only_lora_as_trainable(net)
    return net


# Agents.


def q_net() -> nn.Module:
    """A net of torchrl that reads and writes a TensorDict."""
    modules, tensordict = library("torchrl.modules"), library("tensordict.nn")
    value = modules.MLP(in_features=12, out_features=4, num_cells=[64, 64])
    actor = tensordict.TensorDictModule(value, in_keys=["observation"], out_keys=["action_value"])
    return tensordict.TensorDictSequential(actor, modules.QValueModule(action_space="one-hot"))


def recurrent_q_net() -> nn.Module:
    """An LSTM of torchrl."""
    return library("torchrl.modules").LSTMModule(
        input_size=12, hidden_size=32, in_key="observation", out_key="features", default_recurrent_mode=True
    )


def read_dict(net: Any, **values: Tensor) -> dict[str, Tensor]:
    """What a net writes into a TensorDict."""
    batch_size = next(iter(values.values())).shape[:-1]
    return dict(net(library("tensordict").TensorDict(values, batch_size=batch_size)).items())


# Others.


class Tagger(nn.Module):
    """A conditional random field over a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(64, 32), nn.LSTM(32, 16, batch_first=True, bidirectional=True)
        self.head, self.crf = nn.Linear(32, 5), library("torchcrf").CRF(5, batch_first=True)

    def forward(self, ids: Tensor, tags: Tensor) -> Tensor:
        return -self.crf(self.head(self.lstm(self.words(ids))[0]), tags)


class SparseAttention(nn.Module):
    """Attention by entmax, which has gradients of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(library("entmax").entmax15(q @ k.mT / 32**0.5, dim=-1) @ v)


def orthogonal_net() -> nn.Module:
    """Weights on manifolds, by geotorch."""
    geotorch = library("geotorch")
    net = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 16))
    geotorch.orthogonal(net[0], "weight")
    geotorch.low_rank(net[2], "weight", rank=4)
    geotorch.sphere(net[4], "bias")
    return net


class Hyperbolic(nn.Module):
    """Points of geoopt's ball."""

    def __init__(self) -> None:
        super().__init__()
        geoopt = library("geoopt")
        self.ball = geoopt.PoincareBall()
        self.places = geoopt.ManifoldParameter(0.01 * torch.randn(64, 8), manifold=self.ball)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.ball.dist(self.places[one], self.places[other])


def memcnn_net() -> nn.Module:
    """Layers of memcnn whose inputs are made again of their outputs."""
    memcnn = library("memcnn")
    blocks = []
    for _ in range(3):
        coupling = memcnn.AdditiveCoupling(
            Fm=nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
            Gm=nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
        )
        blocks.append(memcnn.InvertibleModuleWrapper(coupling))
    return nn.Sequential(nn.Conv2d(3, 8, 1), *blocks)


def xlstm_stack() -> nn.Module:
    """Blocks of both kinds."""
    x = library("xlstm")
    config = x.xLSTMBlockStackConfig(
        mlstm_block=x.mLSTMBlockConfig(mlstm=x.mLSTMLayerConfig(num_heads=2)),
        slstm_block=x.sLSTMBlockConfig(
            slstm=x.sLSTMLayerConfig(backend="vanilla", num_heads=2),
            feedforward=x.FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
        ),
        context_length=16,
        num_blocks=2,
        embedding_dim=32,
        slstm_at=[1],
    )
    return x.xLSTMBlockStack(config)


def autoencoder(kind: str) -> nn.Module:
    """A variational autoencoder of pythae."""
    models = library("pythae.models")
    return getattr(models, kind)(getattr(models, f"{kind}Config")(input_dim=(1, 16, 16), latent_dim=4))


def pythae_vae() -> nn.Module:
    """The plain one."""
    return autoencoder("VAE")


def pythae_vqvae() -> nn.Module:
    """With a codebook."""
    return autoencoder("VQVAE")


def keras_net() -> nn.Module:
    """A model of keras, which is one of torch."""
    keras = library("keras")
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def chronos_bolt() -> nn.Module:
    """Patches of a series."""
    config = library("transformers").T5Config(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        vocab_size=2,
        feed_forward_proj="relu",
        dropout_rate=0.0,
        pad_token_id=0,
        decoder_start_token_id=0,
        is_encoder_decoder=True,
        chronos_config={
            "context_length": 64,
            "prediction_length": 16,
            "input_patch_size": 8,
            "input_patch_stride": 8,
            "quantiles": [0.1, 0.5, 0.9],
            "use_reg_token": True,
        },
    )
    return library("chronos.chronos_bolt").ChronosBoltModelForForecasting(config)


def deep_fm() -> nn.Module:
    """Factors of sparse and dense columns."""
    inputs = library("deepctr_torch.inputs")
    columns = [inputs.SparseFeat(f"C{i}", vocabulary_size=20, embedding_dim=8) for i in range(4)]
    columns += [inputs.DenseFeat(f"I{i}", 1) for i in range(3)]
    return library("deepctr_torch.models").DeepFM(columns, columns, dnn_hidden_units=(32, 16))


def efficientdet() -> nn.Module:
    """A detector of effdet."""
    config = library("effdet").get_efficientdet_config("efficientdet_d0")
    config.image_size = (128, 128)
    return library("effdet").EfficientDet(config, pretrained_backbone=False)


class Rotated(nn.Module):
    """Convolutions of e2cnn, of fields that turn; in evaluation their filters are kept."""

    def __init__(self) -> None:
        super().__init__()
        enn, gspaces = library("e2cnn.nn"), library("e2cnn.gspaces")
        space = gspaces.Rot2dOnR2(N=4)
        self.kind = enn.FieldType(space, 3 * [space.trivial_repr])
        inner = enn.FieldType(space, 6 * [space.regular_repr])
        self.body = enn.SequentialModule(
            enn.R2Conv(self.kind, inner, 5, padding=2),
            enn.InnerBatchNorm(inner),
            enn.ReLU(inner, inplace=True),
            enn.R2Conv(inner, inner, 3, padding=1),
            enn.GroupPooling(inner),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(library("e2cnn.nn").GeometricTensor(x, self.kind)).tensor


def fusion_transformer() -> nn.Module:
    """A forecaster of pytorch-forecasting."""
    models, metrics = library("pytorch_forecasting.models"), library("pytorch_forecasting.metrics")
    return models.TemporalFusionTransformer(
        hidden_size=16,
        dropout=0.0,
        loss=metrics.QuantileLoss(),
        output_transformer=lambda out: out["prediction"],
        max_encoder_length=20,
        x_reals=["a", "b", "y"],
        time_varying_reals_encoder=["a", "b", "y"],
        time_varying_reals_decoder=["a"],
    )


def series() -> tuple[Any, ...]:
    """Three reals, twenty steps that are known and five that are asked."""
    none = torch.zeros(4, 20, 0, dtype=torch.long)
    return (
        {
            "encoder_cont": rand(4, 20, 3),
            "decoder_cont": rand(4, 5, 3),
            "encoder_cat": none,
            "decoder_cat": none[:, :5],
            "encoder_lengths": torch.tensor([20, 20, 17, 12]),
            "decoder_lengths": torch.tensor([5, 5, 5, 4]),
            "target_scale": torch.tensor([[0.0, 1.0]]).repeat(4, 1),
        },
    )


class OddImage(nn.Module):
    """A small image net for the learners of other packages."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.flat, self.fc = nn.Flatten(), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.flat(self.body(x)))


def byol() -> nn.Module:
    """Two views of images, a net and its moving average."""
    return library("byol_pytorch").BYOL(
        OddImage(), image_size=32, hidden_layer="flat", projection_size=16, projection_hidden_size=32
    )


class Masked(nn.Module):
    """A masked autoencoder's loss of lightly."""

    def __init__(self) -> None:
        super().__init__()
        heads = library("lightly.models.modules.heads")
        self.body, self.head = OddImage(), heads.SimCLRProjectionHead(16, 16, 8)
        self.loss = library("lightly.loss").NTXentLoss(0.5)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.loss(self.head(self.body(one)), self.head(self.body(other)))


def mask_decoder() -> nn.Module:
    """The part of segment_anything that answers prompts."""
    modeling = library("segment_anything.modeling")
    two_way = modeling.TwoWayTransformer(depth=2, embedding_dim=32, mlp_dim=64, num_heads=4)
    return modeling.MaskDecoder(transformer_dim=32, transformer=two_way, iou_head_hidden_dim=32)


def esm_protein() -> nn.Module:
    """A language model of proteins."""
    alphabet = library("esm").data.Alphabet.from_architecture("ESM-1b")
    return library("esm").ESM2(num_layers=2, embed_dim=32, attention_heads=4, alphabet=alphabet)


MORE_ROWS = [
    # Agents.
    Packaged(
        "stable_baselines3/ActorCritic",
        "stable_baselines3.common.policies:ActorCriticPolicy",
        {"observation_space": BOX, "action_space": FOUR, "lr_schedule": RATE},
        lambda: (rand(64, 12), randint(4, 64)),
        then=told(lambda policy, x, action: policy.evaluate_actions(x, action)),
    ),
    Packaged(
        "stable_baselines3/ActorCritic-acts",
        "stable_baselines3.common.policies:ActorCriticPolicy",
        {"observation_space": BOX, "action_space": BOX, "lr_schedule": RATE, "use_sde": True},
        lambda: (rand(64, 12),),
        trains=False,
    ),
    Packaged(
        "stable_baselines3/NatureCNN",
        "stable_baselines3.common.policies:ActorCriticCnnPolicy",
        {"observation_space": PIXELS, "action_space": FOUR, "lr_schedule": RATE},
        lambda: (randint(256, 2, 4, 84, 84).to(torch.uint8), randint(4, 2)),
        then=told(lambda policy, x, action: policy.evaluate_actions(x, action)),
    ),
    Packaged(
        "stable_baselines3/SAC",
        "stable_baselines3.sac.policies:SACPolicy",
        {"observation_space": BOX, "action_space": BOX, "lr_schedule": RATE},
        lambda: (rand(64, 12),),
        then=told(lambda policy, x: policy.actor.action_log_prob(x)),
    ),
    Packaged(
        "tianshou/Net",
        "tianshou.utils.net.common:Net",
        {"state_shape": 12, "action_shape": 4, "hidden_sizes": (64, 64), "dueling_param": ({}, {})},
        lambda: (rand(64, 12),),
    ),
    Packaged(
        "tianshou/Recurrent",
        "tianshou.utils.net.common:Recurrent",
        {"layer_num": 2, "state_shape": 12, "action_shape": 4, "hidden_layer_size": 32},
        lambda: (rand(16, 5, 12),),
    ),
    made(
        "torchrl/QValue",
        q_net,
        lambda: (rand(32, 12),),
        then=told(lambda net, x: read_dict(net, observation=x)),
    ),
    made(
        "torchrl/LSTM",
        recurrent_q_net,
        lambda: (rand(4, 10, 12), torch.zeros(4, 10, 1, dtype=torch.bool)),
        then=told(lambda net, x, first: read_dict(net, observation=x, is_init=first)),
    ),
    # Flows.
    made(
        "normflows/RealNVP", real_nvp, lambda: (rand(64, 4),), then=told(lambda flow, x: flow.forward_kld(x))
    ),
    made("nflows/Spline", spline_flow, lambda: (rand(64, 4),), then=told(lambda flow, x: flow.log_prob(x))),
    Packaged(
        "zuko/NSF",
        "zuko.flows:NSF",
        {"features": 4, "context": 3, "transforms": 2, "hidden_features": (32, 32)},
        lambda: (rand(64, 4), rand(64, 3)),
        then=told(lambda flow, x, c: flow(c).log_prob(x)),
    ),
    Packaged(
        "zuko/CNF",
        "zuko.flows:CNF",
        {"features": 4, "hidden_features": (32, 32)},
        lambda: (rand(16, 4),),
        then=told(lambda flow, x: flow().log_prob(x)),
    ),
    made("FrEIA/SequenceINN", invertible_net, lambda: (rand(64, 8),)),
    # Equations.
    made("torchsde/euler", Stochastic, lambda: (rand(8, 4),)),
    made("torchode/Tsit5", Solved, lambda: (rand(8, 4),)),
    made("torchdeq/fixed_point", Equilibrium, lambda: (rand(8, 16),)),
    Packaged(
        "neuralop/FNO",
        "neuralop.models:FNO",
        {"n_modes": (8, 8), "in_channels": 1, "out_channels": 1, "hidden_channels": 16, "n_layers": 2},
        lambda: (rand(2, 1, 32, 32),),
    ),
    Packaged(
        "neuralop/TFNO",
        "neuralop.models:TFNO",
        {
            "n_modes": (8, 8),
            "in_channels": 1,
            "out_channels": 1,
            "hidden_channels": 16,
            "n_layers": 2,
            "factorization": "tucker",
            "rank": 0.2,
        },
        lambda: (rand(2, 1, 32, 32),),
    ),
    Packaged(
        "siren_pytorch/SirenNet",
        "siren_pytorch:SirenNet",
        {"dim_in": 2, "dim_hidden": 64, "dim_out": 3, "num_layers": 3},
        lambda: (rand(256, 2),),
    ),
    # Spikes.
    made("snntorch/Leaky", Spikes, lambda: (rand(32, 16).abs(),)),
    made("norse/LIF", norse_net, lambda: (rand(4, 1, 28, 28),)),
    made("spikingjelly/LIF", spikingjelly_net, lambda: (rand(4, 2, 1, 16, 16),), then=told(reset_and_call)),
    # Weights that are drawn, or made by other nets.
    made("bayesian_torch/Flipout", Bayesian, lambda: (rand(8, 3, 16, 16),)),
    made("blitz/Linear", blitz_net, lambda: (rand(32, 16),)),
    made("torchbnn/Linear", torchbnn_net, lambda: (rand(32, 16),)),
    Packaged(
        "pyro/AutoRegressiveNN",
        "pyro.nn:AutoRegressiveNN",
        {"input_dim": 8, "hidden_dims": [32, 32]},
        lambda: (rand(64, 8),),
    ),
    made("hypnettorch/HMLP", Hyper, lambda: (rand(32, 16),)),
    made("loralib/Merged", lora_net, lambda: (randint(64, 4, 16),)),
    # Experts and state spaces.
    Packaged(
        "st_moe_pytorch/MoE",
        "st_moe_pytorch:MoE",
        {"dim": 32, "num_experts": 4, "is_distributed": False},
        lambda: (rand(2, 64, 32),),
    ),
    Packaged(
        "soft_moe_pytorch/SoftMoE",
        "soft_moe_pytorch:SoftMoE",
        {"dim": 32, "seq_len": 64, "num_experts": 4, "is_distributed": False},
        lambda: (rand(2, 64, 32),),
    ),
    Packaged(
        "mixture_of_experts/MoE",
        "mixture_of_experts:MoE",
        {"dim": 32, "num_experts": 4},
        lambda: (rand(2, 64, 32),),
    ),
    Packaged(
        "mambapy/Mamba",
        "mambapy.mamba:Mamba",
        {"config": Later("mambapy.mamba:MambaConfig", {"d_model": 32, "n_layers": 2})},
        lambda: (rand(2, 24, 32),),
    ),
    made("xlstm/both", xlstm_stack, lambda: (rand(2, 16, 32),)),
    Packaged("ncps/CfC", "ncps.torch:CfC", {"input_size": 8, "units": 16}, lambda: (rand(4, 12, 8),)),
    Packaged("ncps/LTC", "ncps.torch:LTC", {"input_size": 8, "units": 16}, lambda: (rand(4, 6, 8),)),
    Packaged(
        "titans_pytorch/NeuralMemory",
        "titans_pytorch:NeuralMemory",
        {"dim": 32, "chunk_size": 8},
        lambda: (rand(2, 32, 32),),
    ),
    # Text, proteins, molecules, points.
    Packaged(
        "reformer_pytorch/ReformerLM",
        "reformer_pytorch:ReformerLM",
        {"num_tokens": 256, "dim": 32, "depth": 2, "max_seq_len": 128, "heads": 2, "bucket_size": 16},
        tokens(length=128),
    ),
    Packaged(
        "local_attention/LocalTransformer",
        "local_attention:LocalTransformer",
        {
            "num_tokens": 256,
            "dim": 32,
            "depth": 2,
            "max_seq_len": 128,
            "heads": 2,
            "local_attn_window_size": 32,
        },
        tokens(length=128),
    ),
    made("entmax/entmax15", SparseAttention, lambda: (rand(2, 24, 32),)),
    made("torchcrf/CRF", Tagger, lambda: (randint(64, 4, 12), randint(5, 4, 12))),
    made("esm/ESM2", esm_protein, lambda: (randint(20, 2, 32, low=4),)),
    Packaged(
        "egnn_pytorch/EGNN",
        "egnn_pytorch:EGNN_Network",
        {"depth": 2, "dim": 16, "num_tokens": 20, "num_nearest_neighbors": 8},
        lambda: (randint(20, 2, 24), points()),
    ),
    Packaged(
        "se3_transformer_pytorch/SE3",
        "se3_transformer_pytorch:SE3Transformer",
        {"dim": 16, "heads": 2, "dim_head": 8, "depth": 1, "num_degrees": 2, "num_neighbors": 6},
        lambda: (rand(1, 16, 16), rand(1, 16, 3), torch.ones(1, 16, dtype=torch.bool)),
    ),
    Packaged(
        "equiformer_pytorch/Equiformer",
        "equiformer_pytorch:Equiformer",
        {
            "num_tokens": 20,
            "dim": (8, 8),
            "dim_head": (4, 4),
            "heads": (2, 2),
            "num_degrees": 2,
            "depth": 1,
            "num_neighbors": 6,
        },
        lambda: (randint(20, 1, 16), rand(1, 16, 3), torch.ones(1, 16, dtype=torch.bool)),
    ),
    Packaged(
        "point_transformer_pytorch/Layer",
        "point_transformer_pytorch:PointTransformerLayer",
        {"dim": 32, "pos_mlp_hidden_dim": 16, "attn_mlp_hidden_mult": 2, "num_neighbors": 8},
        lambda: (rand(2, 24, 32), points(), torch.ones(2, 24, dtype=torch.bool)),
    ),
    # Sound.
    Packaged(
        "asteroid/ConvTasNet",
        "asteroid.models:ConvTasNet",
        {
            "n_src": 2,
            "n_blocks": 2,
            "n_repeats": 2,
            "bn_chan": 16,
            "hid_chan": 32,
            "skip_chan": 16,
            "n_filters": 32,
        },
        sounds(2000),
    ),
    Packaged(
        "asteroid/DPRNN",
        "asteroid.models:DPRNNTasNet",
        {"n_src": 2, "bn_chan": 16, "hid_size": 16, "chunk_size": 20, "n_repeats": 2, "n_filters": 16},
        sounds(2000),
    ),
    Packaged(
        "denoiser/Demucs", "denoiser.demucs:Demucs", {"hidden": 8, "depth": 3, "resample": 2}, sounds(2000)
    ),
    Packaged(
        "openunmix/OpenUnmix",
        "openunmix.model:OpenUnmix",
        {"nb_bins": 65, "hidden_size": 32, "nb_layers": 2},
        lambda: (rand(2, 2, 65, 20).abs(),),
    ),
    Packaged(
        "dac/DAC",
        "dac:DAC",
        {
            "encoder_dim": 8,
            "encoder_rates": [2, 4],
            "decoder_dim": 32,
            "decoder_rates": [4, 2],
            "n_codebooks": 3,
            "codebook_size": 64,
        },
        sounds(1024),
    ),
    # Images: reading, segmenting, enlarging, two views.
    Packaged("easyocr/CRAFT", "easyocr.craft:CRAFT", {}, images(64)),
    Packaged(
        "easyocr/CRNN",
        "easyocr.model.vgg_model:Model",
        {"input_channel": 1, "output_channel": 32, "hidden_size": 32, "num_class": 40},
        lambda: (rand(2, 1, 64, 100), randint(40, 2, 10)),
    ),
    Packaged(
        "doctr/crnn_mobilenet",
        "doctr.models.recognition:crnn_mobilenet_v3_small",
        {"pretrained": False, "pretrained_backbone": False},
        lambda: (rand(2, 3, 32, 128),),
        kwargs={"return_model_output": True},
        trains=False,
    ),
    Packaged(
        "segment_anything/ImageEncoder",
        "segment_anything.modeling:ImageEncoderViT",
        {
            "img_size": 64,
            "patch_size": 8,
            "embed_dim": 32,
            "depth": 2,
            "num_heads": 2,
            "out_chans": 16,
            "use_rel_pos": True,
            "window_size": 3,
            "global_attn_indexes": (1,),
        },
        images(64),
    ),
    made(
        "segment_anything/MaskDecoder",
        mask_decoder,
        lambda: (rand(1, 32, 8, 8), rand(1, 32, 8, 8), rand(2, 3, 32), rand(2, 32, 8, 8), True),
    ),
    Packaged(
        "spandrel/ESRGAN",
        "spandrel.architectures.ESRGAN:ESRGAN",
        {"num_filters": 16, "num_blocks": 2},
        images(24),
    ),
    Packaged(
        "spandrel/LaMa",
        "spandrel.architectures.LaMa:LaMa",
        {"in_nc": 4},
        lambda: (rand(1, 3, 64, 64), rand(1, 1, 64, 64)),
    ),
    Packaged(
        "spandrel/SCUNet",
        "spandrel.architectures.SCUNet:SCUNet",
        {"config": [1, 1, 1, 1, 1, 1, 1], "dim": 64},
        images(64),
    ),
    made("byol_pytorch/BYOL", byol, lambda: (rand(4, 3, 32, 32),)),
    made("lightly/SimCLR", Masked, lambda: (rand(8, 3, 32, 32), rand(8, 3, 32, 32))),
    made("memcnn/AdditiveCoupling", memcnn_net, lambda: (rand(2, 3, 16, 16),)),
    made("effdet/d0", efficientdet, images(128)),
    made("e2cnn/R2Conv", Rotated, images(24)),
    Packaged(
        "perceiver_pytorch/Perceiver",
        "perceiver_pytorch:Perceiver",
        {
            "num_freq_bands": 4,
            "depth": 2,
            "max_freq": 10.0,
            "num_latents": 16,
            "latent_dim": 32,
            "num_classes": 10,
            "weight_tie_layers": True,
        },
        lambda: (rand(2, 24, 24, 3),),
        classes_loss,
    ),
    made("keras/Sequential", keras_net, lambda: (rand(4, 16, 16, 3),)),
    made("pythae/VAE", pythae_vae, lambda: ({"data": rand(4, 1, 16, 16).sigmoid()},)),
    made("pythae/VQVAE", pythae_vqvae, lambda: ({"data": rand(4, 1, 16, 16).sigmoid()},)),
    Packaged(
        "torchcfm/UNet",
        "torchcfm.models.unet:UNetModel",
        {"dim": (1, 32, 32), "num_channels": 32, "num_res_blocks": 1, "num_heads": 1},
        lambda: (rand(2).sigmoid(), rand(2, 1, 32, 32)),
    ),
    # Tables, series, manifolds.
    Packaged(
        "tab_transformer_pytorch/FTTransformer",
        "tab_transformer_pytorch:FTTransformer",
        {"categories": (5, 6, 7), "num_continuous": 4, "dim": 16, "depth": 2, "heads": 2, "dim_head": 8},
        lambda: (randint(5, 16, 3), rand(16, 4)),
    ),
    Packaged(
        "rtdl_revisiting_models/FTTransformer",
        "rtdl_revisiting_models:FTTransformer",
        {
            "n_cont_features": 4,
            "cat_cardinalities": [5, 6],
            "d_out": 2,
            "n_blocks": 2,
            "d_block": 32,
            "attention_n_heads": 4,
            "attention_dropout": 0.0,
            "ffn_d_hidden_multiplier": 2,
            "ffn_dropout": 0.0,
            "residual_dropout": 0.0,
        },
        lambda: (rand(16, 4), randint(5, 16, 2)),
    ),
    made("deepctr_torch/DeepFM", deep_fm, lambda: (torch.cat([randint(20, 32, 4).float(), rand(32, 3)], 1),)),
    made("pytorch_forecasting/TFT", fusion_transformer, series),
    made("chronos/Bolt", chronos_bolt, lambda: (rand(4, 64),)),
    made("geotorch/manifolds", orthogonal_net, lambda: (rand(16, 32),)),
    made("geoopt/Ball", Hyperbolic, lambda: (randint(64, 16), randint(64, 16))),
]


MORE_PACKAGES: Mapping[str, Case] = {
    row.name: Case(row.name, row.name.partition("/")[0], row.make, row.trains) for row in MORE_ROWS
}
