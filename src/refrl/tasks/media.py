"""Tasks whose answers stand in an image or in a sound, and not in the words of the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refrl.media import PLACEHOLDER, pack

COLOURS = {"red": (1.0, -1.0, -1.0), "green": (-1.0, 1.0, -1.0), "blue": (-1.0, -1.0, 1.0)}
NAMES = tuple(COLOURS)
QUARTERS = "abcd"


@dataclass(frozen=True)
class ColourTask:
    """Four quarters of an image have colours of their own; `<image>b=` -> `green`, the colour of the second.

    Over all images and quarters. A quarter is a patch of a model with four features an image.
    """

    size: int = 16
    num_features: int = 4

    verifier = "exact_match"
    name = "colour"

    def __post_init__(self) -> None:
        """Refuse an image without quarters, and one without a place in the prompt (ValueError)."""
        if self.size < 2 or self.size % 2:
            raise ValueError(f"size={self.size} must be even and at least 2")
        if self.num_features < 1:
            raise ValueError(f"num_features={self.num_features} must be at least 1")

    @property
    def num_examples(self) -> int:
        """Images and quarters."""
        return len(QUARTERS) * len(NAMES) ** len(QUARTERS)

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt and the answer of one number."""
        asked, colours = self._drawn(number)
        return f"{PLACEHOLDER * self.num_features}{QUARTERS[asked]}=", NAMES[colours[asked]]

    def media(self, number: int) -> str:
        """Return the image [3, size, size] of one number; values are -1 to 1."""
        _, colours = self._drawn(number)
        quarters = np.array([COLOURS[NAMES[colour]] for colour in colours], dtype=np.float32)
        image = quarters.reshape(2, 2, 3).transpose(2, 0, 1)
        half = self.size // 2
        return pack(image.repeat(half, axis=1).repeat(half, axis=2))

    def _drawn(self, number: int) -> tuple[int, list[int]]:
        """Return the quarter that is asked for, and the colour of each."""
        rest, asked = divmod(number, len(QUARTERS))
        return asked, [rest // len(NAMES) ** place % len(NAMES) for place in range(len(QUARTERS))]


@dataclass(frozen=True)
class PitchTask:
    """A sound is four tones, each in one band of frequencies; `<sound>b=` -> `3`, the band of the second.

    Over all sounds and tones. A tone is four frames: one feature of a model that makes one of four frames.
    """

    num_bands: int = 8
    num_features: int = 4

    verifier = "exact_match"
    name = "pitch"

    def __post_init__(self) -> None:
        """Refuse bands without a digit, and a sound without a place in the prompt (ValueError)."""
        if not 2 <= self.num_bands <= 9:
            raise ValueError(f"num_bands={self.num_bands} must lie between 2 and 9")
        if self.num_features < 1:
            raise ValueError(f"num_features={self.num_features} must be at least 1")

    @property
    def num_examples(self) -> int:
        """Sounds and tones."""
        return len(QUARTERS) * self.num_bands ** len(QUARTERS)

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt and the answer of one number."""
        asked, bands = self._drawn(number)
        return f"{PLACEHOLDER * self.num_features}{QUARTERS[asked]}=", str(bands[asked])

    def media(self, number: int) -> str:
        """Return the log-mel spectrogram [num_bands, 16] of one number: 1 in the band of a tone, -1 elsewhere."""
        _, bands = self._drawn(number)
        sound = np.full((self.num_bands, len(QUARTERS)), -1.0, dtype=np.float32)
        sound[bands, np.arange(len(QUARTERS))] = 1.0
        return pack(sound.repeat(4, axis=1))

    def _drawn(self, number: int) -> tuple[int, list[int]]:
        """Return the tone that is asked for, and the band of each."""
        rest, asked = divmod(number, len(QUARTERS))
        return asked, [rest // self.num_bands**place % self.num_bands for place in range(len(QUARTERS))]
