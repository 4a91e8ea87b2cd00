"""ResNet-50, VGG-19 and Inception v3 as in their papers. This file runs in a container that only has torch.

He et al. 2015 (arXiv 1512.03385), Simonyan and Zisserman 2014 (arXiv 1409.1556),
Szegedy et al. 2015 (arXiv 1512.00567).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


def resnet50(classes: int = 1000, image_size: int = 224) -> nn.Module:
    """Return ResNet-50 (table 1 of the paper): bottleneck blocks, with the stride on the 3x3 convolution."""
    layers: list[nn.Module] = [*_convolution(3, 64, 7, stride=2, padding=3), nn.MaxPool2d(3, stride=2, padding=1)]
    width_in = 64
    for stage, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(blocks):
            layers.append(_Bottleneck(width_in, width, stride=2 if stage and not block else 1))
            width_in = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


def vgg19(classes: int = 1000, image_size: int = 224) -> nn.Module:
    """Return VGG-19 (configuration E of the paper's table 1); the first dense layer fits the image size."""
    layers: list[nn.Module] = []
    width_in = 3
    for width, convolutions in [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)]:
        for _ in range(convolutions):
            layers += [nn.Conv2d(width_in, width, 3, padding=1), nn.ReLU(inplace=True)]
            width_in = width
        layers.append(nn.MaxPool2d(2))
    dense = [512 * (image_size // 32) ** 2, 4096, 4096]
    layers.append(nn.Flatten())
    for wide, narrow in pairwise(dense):
        layers += [nn.Linear(wide, narrow), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, classes))


def inception_v3(classes: int = 1000, image_size: int = 299) -> nn.Module:
    """Return Inception v3 (table 1 of the paper): batch normalisation, no auxiliary head, at least 75 x 75 pixels."""
    return nn.Sequential(
        *_convolution(3, 32, 3, stride=2),
        *_convolution(32, 32, 3),
        *_convolution(32, 64, 3, padding=1),
        nn.MaxPool2d(3, stride=2),
        *_convolution(64, 80, 1),
        *_convolution(80, 192, 3),
        nn.MaxPool2d(3, stride=2),
        *(_inception_35(width_in, pool) for width_in, pool in [(192, 32), (256, 64), (288, 64)]),
        _Branches(
            nn.Sequential(*_convolution(288, 384, 3, stride=2)),
            nn.Sequential(*_convolution(288, 64, 1), *_convolution(64, 96, 3, padding=1), *_convolution(96, 96, 3, 2)),
            nn.MaxPool2d(3, stride=2),
        ),
        *(_inception_17(width) for width in (128, 160, 160, 192)),
        _Branches(
            nn.Sequential(*_convolution(768, 192, 1), *_convolution(192, 320, 3, stride=2)),
            nn.Sequential(
                *_convolution(768, 192, 1), *_factorised_7x7(192, 192, 192), *_convolution(192, 192, 3, stride=2)
            ),
            nn.MaxPool2d(3, stride=2),
        ),
        *(_inception_8(width_in) for width_in in (1280, 2048)),
        nn.AdaptiveAvgPool2d(1),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(2048, classes),
    )


# Constructor, image side in pixels and batch size of each model. A batch takes a few tenths of a second.
MODELS: dict[str, tuple[Callable[[int, int], nn.Module], int, int]] = {
    "resnet50": (resnet50, 64, 8),
    "vgg19": (vgg19, 32, 8),
    "inception_v3": (inception_v3, 75, 8),
}


class _Bottleneck(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(width_in, width, 1),
            *_convolution(width, width, 3, stride=stride, padding=1),
            *_convolution(width, 4 * width, 1)[:2],
        )
        same = stride == 1 and width_in == 4 * width
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_convolution(width_in, 4 * width, 1, stride=stride)[:2])
        )

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


class _Branches(nn.Module):
    """Parallel branches on the same input, concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.branches], dim=1)


def _convolution(
    width_in: int, width: int, kernel: int | tuple[int, int], stride: int = 1, padding: int | tuple[int, int] = 0
) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(width_in, width, kernel, stride=stride, padding=padding, bias=False)
    return convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)


def _factorised_7x7(width_in: int, width_between: int, width: int) -> tuple[nn.Module, ...]:
    """Return a factorised 7x7 convolution: 1x7, then 7x1 (figure 6 of the Inception paper)."""
    return (
        *_convolution(width_in, width_between, (1, 7), padding=(0, 3)),
        *_convolution(width_between, width, (7, 1), padding=(3, 0)),
    )


def _inception_35(width_in: int, pool: int) -> nn.Module:
    return _Branches(
        nn.Sequential(*_convolution(width_in, 64, 1)),
        nn.Sequential(*_convolution(width_in, 48, 1), *_convolution(48, 64, 5, padding=2)),
        nn.Sequential(
            *_convolution(width_in, 64, 1), *_convolution(64, 96, 3, padding=1), *_convolution(96, 96, 3, padding=1)
        ),
        nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), *_convolution(width_in, pool, 1)),
    )


def _inception_17(width: int) -> nn.Module:
    return _Branches(
        nn.Sequential(*_convolution(768, 192, 1)),
        nn.Sequential(*_convolution(768, width, 1), *_factorised_7x7(width, width, 192)),
        nn.Sequential(
            *_convolution(768, width, 1),
            *_convolution(width, width, (7, 1), padding=(3, 0)),
            *_convolution(width, width, (1, 7), padding=(0, 3)),
            *_convolution(width, width, (7, 1), padding=(3, 0)),
            *_convolution(width, 192, (1, 7), padding=(0, 3)),
        ),
        nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), *_convolution(768, 192, 1)),
    )


def _inception_8(width_in: int) -> nn.Module:
    def _split_3x3() -> nn.Module:  # 1x3 and 3x1 in parallel (figure 7)
        return _Branches(
            nn.Sequential(*_convolution(384, 384, (1, 3), padding=(0, 1))),
            nn.Sequential(*_convolution(384, 384, (3, 1), padding=(1, 0))),
        )

    return _Branches(
        nn.Sequential(*_convolution(width_in, 320, 1)),
        nn.Sequential(*_convolution(width_in, 384, 1), _split_3x3()),
        nn.Sequential(*_convolution(width_in, 448, 1), *_convolution(448, 384, 3, padding=1), _split_3x3()),
        nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), *_convolution(width_in, 192, 1)),
    )
