"""`transformers.Trainer` on encoders of ids, sounds and images with decoders that shift labels themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.contracts.supervised import SupervisedSpec
from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import made_model
from seatrial.targets.transformers.heads import (
    ALL_IGNORED,
    BERT,
    IGNORED,
    MEANS_OF_BATCHES,
    MEANS_OF_MEANS,
    NOT_DIVIDED,
    PAD,
    SMOOTHED_ADDED,
    VOCABULARY,
    WIDTH,
    EncoderDecoder,
    example_ids,
)

FIRST, END = 2, 1
"""Id that the decoder starts with, and of the end; both may be labels."""
BART = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": WIDTH,
    "decoder_ffn_dim": WIDTH,
    "max_position_embeddings": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "pad_token_id": PAD,
    "bos_token_id": FIRST,
    "eos_token_id": END,
    "decoder_start_token_id": FIRST,
    "forced_eos_token_id": None,
    "forced_bos_token_id": None,
}


class Translator(EncoderDecoder):
    """An encoder and a decoder whose loss is aligned with labels that are not shifted."""

    first: ClassVar[int] = FIRST

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[int]]:
        row = self.row(example)
        labels = row["labels"]
        decoder_ids = torch.tensor([self.shifted(labels)])
        inputs = {name: torch.tensor([value]) for name, value in row.items() if name != "labels"}
        return model(**inputs, decoder_input_ids=decoder_ids).logits[0], labels

    def shifted(self, labels: Sequence[int]) -> list[int]:
        """Return what the decoder reads: the first id, and the labels without the last one."""
        return [self.first, *labels[:-1]]


class Bart(Translator):
    """BART."""

    model_name, config_name, options = "BartForConditionalGeneration", "BartConfig", BART


class MBart(Translator):
    """mBART, whose decoder starts with the last label that is not padding: the id of the language."""

    thorough = True
    model_name, config_name, options = "MBartForConditionalGeneration", "MBartConfig", BART

    def shifted(self, labels: Sequence[int]) -> list[int]:
        return [labels[-1], *labels[:-1]]


class Marian(Translator):
    """Marian, whose decoder starts with padding."""

    thorough = True
    model_name, config_name, first = "MarianMTModel", "MarianConfig", PAD
    options: ClassVar[Mapping[str, Any]] = {
        **BART,
        "decoder_vocab_size": VOCABULARY,
        "decoder_start_token_id": PAD,
    }


class Pegasus(Marian):
    """Pegasus, whose decoder starts with padding."""

    model_name, config_name = "PegasusForConditionalGeneration", "PegasusConfig"


class Blenderbot(Translator):
    """Blenderbot."""

    thorough = True
    model_name, config_name, options = "BlenderbotForConditionalGeneration", "BlenderbotConfig", BART


class M2M100(Translator):
    """M2M100."""

    thorough = True
    model_name, config_name, options = "M2M100ForConditionalGeneration", "M2M100Config", BART


class Speech(Translator):
    """Speech2Text: features of a sound in place of ids."""

    thorough = True
    model_name, config_name = "Speech2TextForConditionalGeneration", "Speech2TextConfig"
    options: ClassVar[Mapping[str, Any]] = {
        **BART,
        "input_feat_per_channel": 4,
        "input_channels": 1,
        "num_conv_layers": 1,
        "conv_kernel_sizes": (3,),
        "conv_channels": WIDTH,
        "max_source_positions": 32,
        "max_target_positions": 32,
    }
    column: ClassVar[str] = "input_features"
    shape: ClassVar[tuple[int, ...]] = (8, 4)
    in_float64: ClassVar[str] = "5"
    """The first release that computes it in float64, as the oracle does."""

    def __init__(self) -> None:
        """Find the model.

        Raises:
            Gone: the release does not compute it in float64.
        """
        super().__init__()
        if Version(release("transformers")) < Version(self.in_float64):
            raise Gone(f"transformers {release('transformers')} computes {self.model_name} in float32 alone")

    def row(self, example: int) -> dict[str, Any]:
        stream = torch.Generator().manual_seed(example)
        return {
            self.column: torch.randn(self.shape, generator=stream, dtype=torch.float32).tolist(),
            "labels": example_ids(example)[:-1],
        }

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[int]]:
        row = self.row(example)
        inputs = {self.column: torch.tensor([row[self.column]], dtype=next(model.parameters()).dtype)}
        decoder_ids = torch.tensor([self.shifted(row["labels"])])
        return model(**inputs, decoder_input_ids=decoder_ids).logits[0], row["labels"]

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Stack what the encoder reads; pad labels on the right."""
        width = max(len(row["labels"]) for row in rows)
        labels = [[*row["labels"], *[IGNORED] * (width - len(row["labels"]))] for row in rows]
        return {
            self.column: torch.tensor([row[self.column] for row in rows]),
            "labels": torch.tensor(labels),
        }


class Whisper(Speech):
    """Whisper."""

    in_float64 = "4"

    model_name, config_name = "WhisperForConditionalGeneration", "WhisperConfig"
    options: ClassVar[Mapping[str, Any]] = {
        **BART,
        "num_mel_bins": 4,
        "max_source_positions": 8,
        "max_target_positions": 32,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    shape = (4, 16)


SHIFTED_TWICE = KnownFailure(
    "labels are shifted for the decoder and once more by its loss",
    finding="Transformers: labels of VisionEncoderDecoderModel",
    releases=between("transformers", "4.50", "5"),
).of(
    "R12.supervised/loss and gradient",
    "R12.supervised/loss and gradient, examples of unequal numbers of items",
    "R23.supervised/loss, one batch",
)


class Captions(Speech):
    """`VisionEncoderDecoderModel`: an image and a decoder that a causal language model is."""

    thorough = False
    known_failures = (*Translator.known_failures, SHIFTED_TWICE)

    model_name, config_name = "VisionEncoderDecoderModel", "VisionEncoderDecoderConfig"
    column, shape, in_float64 = "pixel_values", (1, 8, 8), "4"
    decoder_family: ClassVar[str] = "Bert"
    decoder_options: ClassVar[Mapping[str, Any]] = {**BERT, "is_decoder": True, "add_cross_attention": True}

    @cached_property
    def _model(self) -> Any:
        return made_model(self.model_class, self._configuration(), 0)

    def _configuration(self) -> Any:
        encoder = find_name("transformers", ["transformers:ViTConfig"])(
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=WIDTH,
            image_size=8,
            patch_size=4,
            num_channels=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return self._joined(encoder)

    def _joined(self, encoder: Any) -> Any:
        decoder = find_name("transformers", [f"transformers:{self.decoder_family}Config"])(
            **self.decoder_options
        )
        config = self.config_class.from_encoder_decoder_configs(encoder, decoder)
        config.decoder_start_token_id, config.pad_token_id = FIRST, PAD
        config.vocab_size = VOCABULARY
        return config


class CaptionsByGPT2(Captions):
    """The same with a GPT-2."""

    thorough = True
    decoder_family = "GPT2"
    decoder_options: ClassVar[Mapping[str, Any]] = {
        "vocab_size": VOCABULARY,
        "n_embd": WIDTH,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 32,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "add_cross_attention": True,
        "bos_token_id": FIRST,
        "eos_token_id": END,
    }


class Joined(Translator):
    """`EncoderDecoderModel` of two BERTs."""

    thorough = True
    known_failures = (NOT_DIVIDED.of(*ALL_IGNORED), *Translator.known_failures)

    model_name, config_name = "EncoderDecoderModel", "EncoderDecoderConfig"

    @cached_property
    def _model(self) -> Any:
        bert = find_name("transformers", ["transformers:BertConfig"])
        decoder = bert(**BERT, is_decoder=True, add_cross_attention=True)
        config = self.config_class.from_encoder_decoder_configs(bert(**BERT), decoder)
        config.decoder_start_token_id, config.pad_token_id = FIRST, PAD
        config.vocab_size = VOCABULARY
        return made_model(self.model_class, config, 0)


class SmoothedBart(Bart):
    """BART with smoothed labels."""

    thorough = True
    supervised_spec = SupervisedSpec(smoothing=0.2)
    training: ClassVar[Mapping[str, Any]] = {"label_smoothing_factor": 0.2}
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        MEANS_OF_MEANS,
        MEANS_OF_BATCHES,
        replace(SMOOTHED_ADDED, releases=between("transformers", "5", "5.16")),
    )

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Add the ids that the decoder reads, as `DataCollatorForSeq2Seq` does: the model is given no labels."""
        batch = super().collate(rows)
        made = self.supervised_model().prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return {**batch, "decoder_input_ids": made}


ADAPTERS: dict[str, type[Any]] = {
    "encoder-decoder-bart": Bart,
    "encoder-decoder-mbart": MBart,
    "encoder-decoder-marian": Marian,
    "encoder-decoder-pegasus": Pegasus,
    "encoder-decoder-blenderbot": Blenderbot,
    "encoder-decoder-m2m100": M2M100,
    "encoder-decoder-speech": Speech,
    "encoder-decoder-whisper": Whisper,
    "encoder-decoder-captions": Captions,
    "encoder-decoder-captions-gpt2": CaptionsByGPT2,
    "encoder-decoder-joined": Joined,
    "encoder-decoder-bart-smoothed": SmoothedBart,
}
