"""What replaces torchvision gives what its documentation says."""

from __future__ import annotations

import torch

from seatrial.targets.transformers.worked.records import torchvision

IMAGE = torch.arange(24, dtype=torch.uint8).reshape(1, 4, 6)


def test_sizes() -> None:
    assert torchvision.resize(IMAGE, [2, 3]).shape == (1, 2, 3)
    assert torchvision.resize(IMAGE, 8).shape == (1, 8, 12)
    assert torchvision.resize(IMAGE, [8], max_size=9).shape == (1, 6, 9)
    assert torch.equal(torchvision.resize(IMAGE, [4, 6]), IMAGE)
    assert torchvision.resize(IMAGE, [2, 3]).dtype == torch.uint8


def test_modes_by_name_and_number() -> None:
    nearest = torchvision.resize(IMAGE, [2, 3], torchvision.InterpolationMode.NEAREST)
    assert nearest.tolist() == [[[0, 2, 4], [12, 14, 16]]]
    assert torch.equal(torchvision.resize(IMAGE, [2, 3], 0), nearest)


def test_edges() -> None:
    around = torchvision.pad(IMAGE, [1, 0, 2, 1], fill=7)
    assert around.shape == (1, 5, 9)
    assert around[0, 0].tolist() == [7, 0, 1, 2, 3, 4, 5, 7, 7]
    assert torchvision.pad(IMAGE, [2, 0, 0, 0], padding_mode="symmetric")[0, 0].tolist()[:3] == [1, 0, 0]


def test_parts() -> None:
    assert torchvision.crop(IMAGE, 1, 2, 2, 2).tolist() == [[[8, 9], [14, 15]]]
    assert torchvision.crop(IMAGE, 3, 5, 2, 2).tolist() == [[[23, 0], [0, 0]]]
    assert torchvision.center_crop(IMAGE, [2, 2]).tolist() == [[[8, 9], [14, 15]]]
    assert torchvision.center_crop(IMAGE, [6, 2])[0, :, 0].tolist() == [0, 2, 8, 14, 20, 0]


def test_values() -> None:
    colors = torch.tensor([100.0, 50.0, 10.0]).view(3, 1, 1)
    assert torchvision.rgb_to_grayscale(colors).item() == torch.tensor(60.38).item()
    assert torchvision.normalize(colors, [0.0, 10.0, 10.0], [1.0, 2.0, 4.0]).flatten().tolist() == [
        100,
        20,
        0,
    ]
    assert torchvision.to_dtype(torch.tensor([255], dtype=torch.uint8), torch.float32, scale=True).item() == 1


def test_boxes() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 5], [8, 8, 9, 9]])
    scores = torch.tensor([0.5, 0.9, 0.1])
    assert torchvision.nms(boxes, scores, 0.5).tolist() == [1, 2]
    assert torchvision.batched_nms(boxes, scores, torch.tensor([0, 1, 1]), 0.5).tolist() == [1, 0, 2]
    masks = torch.zeros(1, 4, 6)
    masks[0, 1:3, 2:5] = 1
    assert torchvision.masks_to_boxes(masks).tolist() == [[2, 1, 4, 2]]
