"""Short runs of refrl's supervised fine-tuning, offered to the relations."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from refrl.config import SFTRunConfig
from refrl.rewards import score_completions
from refrl.tasks import Example
from refrl.training import build
from refrl.training.recorder import RunRecorder
from refrl.training.sft import run_sft
from seatrial.relations.records.run import UpdateRecord
from seatrial.relations.records.tuning import AnswerRow, HeldOutLoss, Lesson, TuningRecord, TuningStep
from seatrial.targets.reference.configuration import dotted, tuning_configuration
from seatrial.targets.reference.runs.short import quiet, with_own_parts


class ReferenceTuning:
    """See `seatrial.relations.contracts.tuning`."""

    options: Mapping[str, Any]

    def short_tuning(self, options: Mapping[str, Any], *, seed: int) -> TuningRecord:
        with tempfile.TemporaryDirectory() as folder, quiet():
            fixed = {"sft.seed": seed, "logger.log_dir": f"{folder}/log"}
            config = tuning_configuration({**self.options, **with_own_parts(options), **fixed})
            recorder = RunRecorder()
            run_sft(config, recorder)
        return tuning_record_of(recorder.recording, config)


def tuning_record_of(recording: Mapping[str, Any], config: SFTRunConfig) -> TuningRecord:
    """Return a recording of refrl as the relations read it."""
    splits = build.build_splits(config.data)
    encoder = build.build_encoder(config.policy, config.data, build.build_tokenizer(config.policy))
    rewards = build.build_rewards(config.data)

    def lessons(examples: Sequence[Example]) -> tuple[Lesson, ...]:
        return tuple(
            Lesson(
                prompt_id=one.prompt_id,
                prompt=encoder.rendered(one.prompt),
                answer=one.target,
                reward=score_completions([one.target], [one.answer], rewards).rewards[0],
            )
            for one in examples
        )

    def rows(of: Sequence[Mapping[str, Any]]) -> tuple[AnswerRow, ...]:
        return tuple(AnswerRow(**row) for row in of)

    return TuningRecord(
        options=dotted(config.model_dump(mode="json")),
        lessons=lessons(splits.train),
        held_out=lessons(splits.validation[: config.sft.max_val_samples]),
        initial_weights=recording["initial_weights"],
        final_weights=recording["final_weights"],
        trainable=frozenset(recording["trainable"]),
        steps=tuple(
            TuningStep(
                step=step["step"],
                rows=rows(step["rows"]),
                updates=tuple(UpdateRecord(**update) for update in step["updates"]),
                metrics=step["metrics"],
                weights_after=step["weights_after"],
            )
            for step in recording["steps"]
        ),
        losses=tuple(
            HeldOutLoss(step=one["step"], rows=rows(one["rows"]), loss=one["loss"])
            for one in recording["losses"]
        ),
        end_id=encoder.end_token_id(),
        global_streams_untouched=recording["global_streams_untouched"],
        in_training_mode=recording["in_training_mode"],
    )
