"""The audited architectures, each written as stages: ResMLP, ViTMini, SmallResNet, StudentNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from inspect import Parameter, signature

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faudit import plugins
from faudit.errors import NetworkError, unfit, unknown
from faudit.networks.view import Residual, Staged
from faudit.seeds import check_seed


class MLPBlock(Residual):
    """h + W2 gelu(W1 LN(h)); W2 starts near zero, so the stream starts near the identity.

    With ``skip=False`` the block is its update alone, h_{l+1} = f_l(h_l).
    """

    def __init__(
        self, width: int, *, norm: bool = True, skip: bool = True, last_std: float = 0.01
    ) -> None:
        super().__init__()
        self.skip = skip
        self.ln = nn.LayerNorm(width) if norm else nn.Identity()
        self.w1 = nn.Linear(width, width)
        self.w2 = nn.Linear(width, width)
        self.last_std = last_std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W2 once its layer has drawn its own; a baseline must start where the network did."""
        nn.init.normal_(self.w2.weight, std=self.last_std)
        nn.init.zeros_(self.w2.bias)

    def split(self, h: Tensor) -> tuple[Tensor, Tensor]:
        update = self.w2(F.gelu(self.w1(self.ln(h))))
        return h if self.skip else torch.zeros_like(update), update


class ResMLP(Staged):
    """Flatten, a linear embedding, pre-LayerNorm MLP blocks, a terminal LayerNorm, a linear head.

    ``skip=False`` takes the residual connection out of every block: the no-residual control.

    >>> ResMLP(inputs=12, width=8, depth=2, classes=4)(torch.zeros(3, 12)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        inputs: int = 3072,
        width: int = 256,
        depth: int = 4,
        classes: int = 10,
        *,
        terminal_norm: bool = True,
        block_norm: bool = True,
        skip: bool = True,
    ) -> None:
        super().__init__()
        _positive(inputs=inputs, width=width, classes=classes)
        _at_least(0, depth=depth)
        self.flat = nn.Linear(inputs, width)
        blocks = (MLPBlock(width, norm=block_norm, skip=skip) for _ in range(depth))
        self.blocks = nn.ModuleList(blocks)
        self.out_ln = nn.LayerNorm(width) if terminal_norm else nn.Identity()
        self.out_head = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.flat(x.flatten(1))

    def readout(self, h: Tensor) -> Tensor:
        return self.out_head(self.out_ln(h))


class StudentNet(ResMLP):
    """The student of the student-teacher task: a ResMLP with no LayerNorm anywhere."""

    def __init__(
        self, inputs: int = 128, width: int = 128, depth: int = 4, classes: int = 10
    ) -> None:
        super().__init__(inputs, width, depth, classes, terminal_norm=False, block_norm=False)


class AttentionBlock(Residual):
    """A pre-LayerNorm transformer block; its update is what attention and MLP add together."""

    def __init__(self, width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.w1 = nn.Linear(width, expansion * width)
        self.w2 = nn.Linear(expansion * width, width)

    def split(self, h: Tensor) -> tuple[Tensor, Tensor]:
        attended = self._attend(self.ln1(h))
        return h, attended + self.w2(F.gelu(self.w1(self.ln2(h + attended))))

    def _attend(self, h: Tensor) -> Tensor:
        n, tokens, width = h.shape
        qkv = self.qkv(h).view(n, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(n, tokens, width))


class ViTMini(Staged):
    """A small vision transformer: patches, a class token, positions, a terminal LayerNorm.

    >>> ViTMini(image=8, patch=4, width=8, depth=2, heads=2)(torch.zeros(3, 3, 8, 8)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        image: int = 32,
        patch: int = 4,
        width: int = 128,
        depth: int = 4,
        classes: int = 10,
        *,
        channels: int = 3,
        heads: int = 4,
        expansion: int = 2,
    ) -> None:
        super().__init__()
        _positive(image=image, patch=patch, width=width, classes=classes)
        _at_least(0, depth=depth)
        _positive(channels=channels, heads=heads, expansion=expansion)
        _divides("width", width, "heads", heads)
        _divides("image", image, "patch", patch)
        self.patch_embed = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads, expansion) for _ in range(depth))
        self.out_ln = nn.LayerNorm(width)
        self.out_head = nn.Linear(width, classes)

    def reset_parameters(self) -> None:
        """Draw the class token and the positions anew."""
        for parameter in (self.cls, self.positions):
            nn.init.normal_(parameter, std=0.02)

    def embed(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(len(x), -1, -1), patches], 1) + self.positions

    def readout(self, h: Tensor) -> Tensor:
        return self.out_head(self.out_ln(h[:, 0]))


class ConvBlock(Residual):
    """A pre-activation BatchNorm block; where the width grows, the skip is a strided 1x1 kernel."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.bn1, self.bn2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.skip: nn.Module = nn.Identity()
        if before != after:
            self.skip = nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def split(self, h: Tensor) -> tuple[Tensor, Tensor]:
        update = self.conv1(F.relu(self.bn1(h)))
        return self.skip(h), self.conv2(F.relu(self.bn2(update)))


class SmallResNet(Staged):
    """A convolutional residual network with BatchNorm and no LayerNorm; widths grow by stage.

    >>> SmallResNet(widths=(4, 8))(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, widths: tuple[int, ...] = (32, 32, 64, 64), classes: int = 10, *, channels: int = 3
    ) -> None:
        super().__init__()
        if not isinstance(widths, (tuple, list)):
            raise NetworkError(f"widths must be one whole number per block, not {widths!r}")
        _positive(classes=classes, channels=channels, depth=len(widths))
        _positive(**{f"widths[{i}]": width for i, width in enumerate(widths)})
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        pairs = zip((widths[0], *widths[:-1]), widths, strict=True)
        self.blocks = nn.ModuleList(ConvBlock(before, after) for before, after in pairs)
        self.out_head = nn.Linear(widths[-1], classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.stem(x)

    def readout(self, h: Tensor) -> Tensor:
        return self.out_head(F.relu(h).mean((2, 3)))


NETWORKS: dict[str, Callable[..., Staged]] = {
    "resmlp": ResMLP,
    "studentnet": StudentNet,
    "vitmini": ViTMini,
    "smallresnet": SmallResNet,
}


def make_network(
    name: str, image: tuple[int, ...], classes: int, /, *, seed: int, **options: object
) -> nn.Module:
    """The network ``name`` for inputs of shape ``image`` (without batch), drawn from ``seed``.

    The zoo's, or one that an installed package offers (``faudit.plugins``). Of what an image tells
    it gets what its ``__init__`` asks for: ``inputs`` (how many numbers), or ``channels`` and, for
    a square one, ``image`` (how wide).

    >>> make_network("resmlp", (1, 28, 28), 10, seed=0, width=16, depth=2).flat.in_features
    784
    """
    make = network_class(name)
    parameters = dict(signature(make).parameters)
    check_seed(seed)
    given = {"classes": classes} if "classes" in parameters else {}
    given |= _fit_input(name, parameters.keys(), image)
    open_ends = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    known = {n: p.default for n, p in parameters.items() if p.kind not in open_ends}
    _check_options(name, options, {n: value for n, value in known.items() if n not in given})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return make(**given, **options)
        except (TypeError, ValueError, OverflowError) as error:
            raise NetworkError(f"network {name!r}: {error}") from error


def network_class(name: str) -> Callable[..., nn.Module]:
    """The network called ``name``: one of ``NETWORKS``, or one that an installed package offers.

    >>> network_class("resmlp").__name__
    'ResMLP'
    """
    own: Mapping[str, Callable[..., nn.Module]] = NETWORKS
    return plugins.find_class(plugins.NETWORKS, "network", name, own, nn.Module, NetworkError)


def _check_options(name: str, options: dict[str, object], known: dict[str, object]) -> None:
    kind = f"option of network {name!r}"
    for option, value in options.items():
        if option not in known:
            raise NetworkError(unknown(kind, option, known))
        if problem := unfit(kind, option, value, known[option]):
            raise NetworkError(problem)


def _fit_input(name: str, asked: Set[str], image: tuple[int, ...]) -> dict[str, int]:
    """What the network asks for of the inputs' shape."""
    if "inputs" in asked:
        return {"inputs": int(torch.Size(image).numel())}
    if not asked & {"channels", "image"}:
        return {}
    if len(image) != 3:
        raise NetworkError(f"network {name!r} needs images (C, H, W), not inputs of shape {image}")
    if "image" in asked and image[1] != image[2]:
        raise NetworkError(f"network {name!r} needs square images, not {image[1]}x{image[2]}")
    fits = {"channels": image[0], "image": image[1]}
    return {key: value for key, value in fits.items() if key in asked}


def _positive(**sizes: int) -> None:
    _at_least(1, **sizes)


def _at_least(least: int, **sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < least:
            raise NetworkError(f"{name} must be a whole number of at least {least}, not {size!r}")


def _divides(whole_name: str, whole: int, part_name: str, part: int) -> None:
    if whole % part:
        raise NetworkError(f"{whole_name} {whole} is not divisible by {part_name} {part}")
