"""Families of Transformers' causal language models, each as one tiny model in every form; see `contracts.families`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.contracts.model_files import FileForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import made_model
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.family_caches import CACHES, given_cache
from seatrial.targets.transformers.family_calls import FamilyCalls
from seatrial.targets.transformers.family_failures import OLDER
from seatrial.targets.transformers.family_files import file_errors
from seatrial.targets.transformers.family_table import FAMILIES, SIZES, Family
from seatrial.targets.transformers.small_models import has_option, small_config, text_config, with_options

VOCABULARY, PAD, END = 61, 0, 1
CHUNK = 3
"""Ids of a prompt that are read at once."""


class CausalFamily(FamilyCalls, KnowsFailures):
    """A family's tiny model; its weights are the same every time."""

    vocab_size = VOCABULARY
    padding_id = PAD
    family: ClassVar[str]

    def __init__(self) -> None:
        """Find the family's configuration in the installed release."""
        mapping = find_name("transformers", ["transformers.models.auto.configuration_auto:CONFIG_MAPPING"])
        if self.family not in mapping or self.family not in families_of_release():
            raise Gone(f"transformers {release('transformers')} has no causal language model {self.family}")
        if Version(release("transformers")) < Version(self.row.since):
            raise Gone(f"the adapter of {self.family} fits transformers {self.row.since} and later")
        self._config_class = mapping[self.family]

    @property
    def row(self) -> Family:
        """Return what the table says of the family."""
        return FAMILIES[self.family]

    def _config(self, **more: Any) -> Any:
        """Return a configuration of few layers without dropout."""
        if self.row.has_parts:
            return with_options(small_config(self._config_class), {**self.row.options, **more})
        known = self._config_class()
        given = {
            name: value
            for name, value in SIZES.items()
            if name not in self.row.without and has_option(known, name) and not _is_computed(known, name)
        }
        quiet = {
            name: 0.0
            for name, value in known.to_dict().items()
            if isinstance(value, float) and ("drop" in name or "jitter" in name)
        }
        for alias, name in getattr(self._config_class, "attribute_map", {}).items():
            if name in {**self.row.options, **more}:
                given.pop(alias, None)  # which would go before the name that is given
        ids = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": None}
        return self._config_class(**{**ids, **quiet, **given, **self.row.options, **more})

    def made(self, attention: str, **more: Any) -> Any:
        """Return a model with other options, in evaluation mode."""
        import transformers

        auto: Any = transformers.AutoModelForCausalLM

        def build(config: Any) -> Any:
            return auto.from_config(config, attn_implementation=attention)

        return self._weighted(build, self._config(**more)).eval()

    def _weighted(self, build: Any, config: Any) -> Any:
        return made_model(build, config, 0)

    @cached_property
    def _models(self) -> dict[str, Any]:
        return {}

    def model(self, attention: str = "eager") -> Any:
        """Return the model with a kind of attention, in evaluation mode."""
        if attention not in self._models:
            self._models[attention] = self.made(attention)
        return self._models[attention]

    def _parameters(self) -> Mapping[str, Any]:
        return inspect.signature(self.model().forward).parameters

    def family_excludes(self, form: ModelForm) -> str | None:
        for sides, name in ((("left", "right"), "padding"), (("left",), "padding on the left")):
            if form.together in sides and name in self.row.not_served:
                return self.row.not_served[name]
        if form.decoded in self.row.not_served:
            return self.row.not_served[form.decoded]
        if form.attention == "sdpa" and not getattr(self.model(), "_supports_sdpa", False):
            return "no scaled dot-product attention"
        if form.decoded == "a chunked prompt" and not hasattr(
            self.model().generation_config, "prefill_chunk_size"
        ):
            return "no chunked prompts"
        needs = {
            "attention_mask": bool(form.together),
            "inputs_embeds": form.embedded,
            "logits_to_keep": bool(form.num_last) and not form.decoded,
        }
        missing = [name for name, needed in needs.items() if needed and name not in self._parameters()]
        return f"no {missing[0]}" if missing else None

    def family_logits(self, rows: Sequence[Sequence[int]], form: ModelForm) -> list[Tensor]:
        model = self.model(form.attention)
        if form.reloaded:
            model = saved_and_loaded(model)
        if form.more_ids:
            model = copy.deepcopy(model)
            model.resize_token_embeddings(VOCABULARY + form.more_ids, mean_resizing=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            batches = [rows] if form.together else [[row] for row in rows]
            return [
                one[..., :VOCABULARY] for batch in batches for one in self._computed(form)(model, batch, form)
            ]

    def _inputs(self, rows: Sequence[Sequence[int]], side: str) -> tuple[dict[str, Tensor], list[slice]]:
        """Return a batch padded on a side, and the places of each row in it."""
        S = max(map(len, rows))
        gaps = [S - len(row) for row in rows]
        left = side != "right"
        ids = [
            [PAD] * gap + [*row] if left else [*row] + [PAD] * gap
            for row, gap in zip(rows, gaps, strict=True)
        ]
        shown = [
            [0] * gap + [1] * len(row) if left else [1] * len(row) + [0] * gap
            for row, gap in zip(rows, gaps, strict=True)
        ]
        mask_BS = torch.tensor(shown)
        inputs = {"input_ids": torch.tensor(ids), "attention_mask": mask_BS}
        if "position_ids" in self._parameters():
            inputs["position_ids"] = (mask_BS.cumsum(1) - 1).clamp(min=0)
        if "attention_mask" not in self._parameters():
            del inputs["attention_mask"]
        places = [slice(gap, S) if left else slice(0, S - gap) for gap in gaps]
        return inputs, places

    def _forward(self, model: Any, rows: Sequence[Sequence[int]], form: ModelForm) -> Iterator[Tensor]:
        inputs, places = self._inputs(rows, form.together)
        options: dict[str, Any] = {}
        if form.embedded:
            options["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
        if form.num_last:
            options["logits_to_keep"] = form.num_last
        if "use_cache" in self._parameters():
            options["use_cache"] = False
        logits_BSV = model(**inputs, **options).logits
        for row, place in enumerate(places):
            yield logits_BSV[row] if form.num_last else logits_BSV[row, place]

    def family_classes(self, rows: Sequence[Sequence[int]], side: str) -> tuple[Tensor, Tensor]:
        import transformers

        auto: Any = transformers.AutoModelForSequenceClassification
        config = self._config(num_labels=3)
        if type(config) not in auto._model_mapping:
            raise NotServed(f"no {self.family} that classifies rows")

        def build(config: Any) -> Any:
            return auto.from_config(config, attn_implementation="eager")

        model = self._weighted(build, config).eval()
        if not isinstance(getattr(model, "score", None), torch.nn.Linear):
            raise NotServed("its head is no matrix by the name of score")
        inputs, _ = self._inputs(rows, side)
        takes = inspect.signature(model.forward).parameters
        found_BC = model(**{name: value for name, value in inputs.items() if name in takes}).logits
        states = [model.base_model(input_ids=torch.tensor([row])).last_hidden_state[0, -1] for row in rows]
        return found_BC, model.score(torch.stack(states))

    def _computed(
        self, form: ModelForm
    ) -> Callable[[Any, Sequence[Sequence[int]], ModelForm], Iterator[Tensor]]:
        """Return what computes the logits of a form."""
        if form.decoded == "in two passes":
            return self._in_two_passes
        return self._decoded if form.decoded else self._forward

    def _in_two_passes(self, model: Any, rows: Sequence[Sequence[int]], form: ModelForm) -> Iterator[Tensor]:
        """Yield the logits of the last places, which follow a pass over the ids before them."""
        T = form.num_last
        inputs, _ = self._inputs(rows, "left")
        cache = next((name for name in CACHES if name in self._parameters()), None)
        if cache is None:
            raise NotServed("no cache is taken")
        if cache == "cache_params":
            raise NotServed(
                "this release takes several ids after a state only with their places in the cache"
            )
        # In a batch some rows begin in the second pass, behind padding.
        start = CHUNK if form.together else inputs["input_ids"].shape[1] - T
        before = model(**{name: value[:, :start] for name, value in inputs.items()}, use_cache=True)
        given = given_cache(before)
        # Attention needs the mask of the ids before as well, which a state holds by itself.
        whole = ("attention_mask",) if hasattr(text_config(model), "num_attention_heads") else ()
        rest = {name: value if name in whole else value[:, start:] for name, value in inputs.items()}
        yield from model(**rest, **{cache: given}, use_cache=True).logits[:, -T:]

    def _decoded(self, model: Any, rows: Sequence[Sequence[int]], form: ModelForm) -> Iterator[Tensor]:
        """Yield the logits with which the last ids of rows are predicted, and those after the last one."""
        import transformers

        T = form.num_last
        prompts = [row[: len(row) - T + 1] for row in rows]
        forced_BT = torch.tensor([[*row[len(row) - T + 1 :], END] for row in rows])
        inputs, _ = self._inputs(prompts, "left")
        inputs.pop("position_ids", None)  # as a caller of `generate` leaves them out
        P = inputs["input_ids"].shape[1]

        class Forced(transformers.LogitsProcessor):
            def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
                due_B1 = forced_BT[:, input_ids.shape[1] - P, None]
                return torch.full_like(scores, -1e9).scatter(1, due_B1, 0.0)

        try:
            found = model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=T,
                min_new_tokens=T,
                logits_processor=transformers.LogitsProcessorList([Forced()]),
                return_dict_in_generate=True,
                output_logits=True,
                pad_token_id=PAD,
                eos_token_id=None,
                **_cached(form),
            )
        except (RuntimeError, TypeError, ValueError) as error:
            # The first are the words of a release for a family that makes its cache later.
            late = "prefill chunking" in str(error)
            static = form.decoded == "from a static cache"
            if late or (static and not getattr(model, "_can_compile_fullgraph", True)):
                raise NotServed(error_line(error)) from error
            raise
        yield from torch.stack(found.logits, dim=1)

    def family_step(
        self,
        rows: Sequence[Sequence[int]],
        *,
        checkpointed: bool,
        attention: str = "eager",
        num_items: int | None = None,
    ) -> StepResult:
        model = copy.deepcopy(self.model(attention)).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        inputs, places = self._inputs(rows, "right")
        labels = torch.full_like(inputs["input_ids"], -100)
        for row, place in enumerate(places):
            labels[row, place] = inputs["input_ids"][row, place]
        options: dict[str, Any] = {"use_cache": False} if "use_cache" in self._parameters() else {}
        if num_items is not None:
            options["num_items_in_batch"] = num_items
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            loss = model(**inputs, labels=self._as_taken(labels), **options).loss
        loss.backward()
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        return StepResult(loss=float(loss.detach()), gradients=gradients)

    @property
    def family_checkpoints(self) -> bool:
        return bool(self.model().supports_gradient_checkpointing)

    def family_ties(self, *, reloaded: bool) -> bool:
        try:
            model = self.tied_model
        except Exception:  # noqa: BLE001  the configuration refuses a tied head
            return False
        return is_tied(saved_and_loaded(model) if reloaded else model)

    def file_errors(self, form: FileForm) -> list[str]:
        return file_errors(self, form)

    @cached_property
    def tied_model(self) -> Any:
        """The model with its head tied to the embeddings."""
        return self.made("eager", tie_word_embeddings=True)


def _is_computed(config: Any, name: str) -> bool:
    """Return whether a configuration computes an option from others."""
    found = getattr(type(config), name, None)
    return isinstance(found, property) and found.fset is None


def is_tied(model: Any) -> bool:
    """Return whether a model's head has the tensor of its embeddings."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def saved_and_loaded(model: Any) -> Any:
    """Return a model as it is after it was saved and loaded.

    Raises:
        NotServed: the release does not save a family with a tied head.
    """
    folder = new_folder()
    try:
        model.save_pretrained(folder)
    except RuntimeError as error:
        if "shared tensors" in str(error):
            raise NotServed(error_line(error)) from error
        raise
    attention = getattr(model.config, "_attn_implementation", None)
    return type(model).from_pretrained(folder, attn_implementation=attention).eval()


def _cached(form: ModelForm) -> dict[str, Any]:
    if form.decoded == "without a cache":
        return {"use_cache": False}
    if form.decoded == "from a static cache":
        return {"use_cache": True, "cache_implementation": "static"}
    if form.decoded == "a chunked prompt":
        return {"use_cache": True, "prefill_chunk_size": CHUNK}
    return {"use_cache": True}


def _adapter(family: str) -> type[CausalFamily]:
    return type(
        f"Family_{family}",
        (CausalFamily,),
        {
            "__doc__": f"The family {family}.",
            "family": family,
            "thorough": not FAMILIES[family].quick,
            "known_failures": (*FAMILIES[family].known, *OLDER.get(family, ())),
        },
    )


def families_of_release() -> list[str]:
    """Return the families of causal language models that the installed release has."""
    return list(
        find_name(
            "transformers", ["transformers.models.auto.modeling_auto:MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"]
        )
    )


ADAPTERS: dict[str, type[Any]] = {f"family-{family}": _adapter(family) for family in FAMILIES}
