"""Worked examples of commands: their exit codes and words, and what they call with which options."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl import cli
from refrl.config import load_config
from refrl.config.run import GRPORunConfig
from refrl.errors import ConfigError, GenerationError, TrainingError, out_of_memory
from refrl.recipes import find_config
from refrl.training.profiling import StepProfiler
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.made import example, refused


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_exits()
    yield from _of_words()
    yield from _of_training()
    yield from _of_profiles()


def called(words: Sequence[str], **changes: Any) -> Any:
    """Return (exit code, printed text, errors) of a command line, with functions of modules replaced."""
    printed, errors = StringIO(), StringIO()
    with ExitStack() as stack:
        for name, made in changes.items():
            module, _, function = name.rpartition("__")
            stack.enter_context(patch(f"refrl.{module.replace('__', '.')}.{function}", made))
        stack.enter_context(redirect_stdout(printed))
        stack.enter_context(redirect_stderr(errors))
        try:
            code: Any = cli.main(words)
        except SystemExit as error:
            code = error.code
    return code, printed.getvalue(), errors.getvalue()


def _raises(error: BaseException) -> Any:
    def run(arguments: argparse.Namespace) -> None:
        raise error

    return run


def _of_exits() -> Iterator[WorkedExample]:
    words = ["recipes"]
    for name, error, code, said in (
        ("a wrong option", ConfigError("no\n such  option"), 2, "refrl recipes: no such option\n"),
        ("a training that ends", TrainingError("step 3"), 1, "refrl recipes: step 3\n"),
        ("a lost engine", GenerationError("gone"), 1, "refrl recipes: gone\n"),
        ("a full disk", OSError(28, "full"), 1, "refrl recipes: [Errno 28] full\n"),
        ("an interrupt", KeyboardInterrupt(), 130, "refrl recipes: interrupted\n"),
        ("a termination", cli.Terminated(), 143, "refrl recipes: terminated\n"),
        (
            "a password",
            ConfigError("https://user:word@host is not there"),
            2,
            "refrl recipes: https://[masked]@host is not there\n",
        ),
    ):
        yield example(
            f"the exit code of {name}",
            (code, "", said),
            lambda error=error: called(words, cli__recipes__run=_raises(error)),
        )
    yield example(
        "the exit code of a success", (0, "", ""), called, words, cli__recipes__run=lambda given: None
    )
    yield refused(
        "no row", "an error of the program", called, words, cli__recipes__run=_raises(RuntimeError("no row"))
    )
    yield example(
        "the exit code without memory",
        (1, True),
        lambda: (
            lambda found: (found[0], found[2].startswith("refrl recipes: out of memory: CUDA out of memory;"))
        )(called(words, cli__recipes__run=_raises(RuntimeError("CUDA out of memory. Tried to")))),
    )
    for what, raised, right in (
        ("of Python", MemoryError(), "out of memory: the system gave no more; lower"),
        (
            "of the CPU",
            RuntimeError("DefaultCPUAllocator: can't allocate memory: x"),
            "out of memory: DefaultCPU",
        ),
        ("of another kind", RuntimeError("memory format"), "None"),
    ):
        yield example(
            f"memory {what}",
            True,
            lambda raised=raised, right=right: str(out_of_memory(raised)).startswith(right),
        )

    def handled(number: signal.Signals) -> Any:
        """Return what a signal during a command does, and whether the handler of before is back."""

        def own(given: int, frame: Any) -> None:
            """Be there before."""

        before = signal.signal(number, own)
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # a worker of Ray blocks SIGINT
        try:
            code = called(words, cli__recipes__run=lambda given: signal.raise_signal(number))[0]
            return code, signal.getsignal(number) is own
        finally:
            signal.signal(number, before)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    yield example("SIGINT", (130, True), handled, signal.SIGINT)
    yield example("SIGTERM", (143, True), handled, signal.SIGTERM)


def _of_words() -> Iterator[WorkedExample]:
    grpo = ["grpo", "--config", "grpo-smoke"]
    for name, words, said in (
        ("an unknown command", ["grp"], "refrl: 'grp' is unknown; did you mean 'grpo'?"),
        (
            "an unknown option",
            [*grpo, "--print-confg"],
            "refrl grpo: there is no option --print-confg; did you",
        ),
        (
            "a choice that is not there",
            ["profile", "--loop", "ppo"],
            "refrl profile: argument --loop: 'ppo' is unknown; known: grpo, sft;",
        ),
        (
            "an option without its value",
            ["grpo", "--config"],
            "refrl grpo: argument --config: expected one argument;",
        ),
        ("a missing option", ["grpo"], "refrl grpo: the following arguments are required: --config"),
        (
            "a word too many",
            ["recipes", "a", "b"],
            "refrl recipes: 'b' is one argument too many; see refrl recipes --help",
        ),
    ):
        yield example(
            name,
            (2, "", True),
            lambda words=words, said=said: (
                lambda found: (
                    *found[:2],
                    said in found[2].replace("argument COMMAND: ", "") and found[2].count("\n") == 1,
                )
            )(called(words)),
        )

    def shortened(words: Sequence[str]) -> Any:
        """Return the exit code of a command that does nothing, and the words before a proposal."""
        module = cli.COMMANDS[words[0]][0].removeprefix("refrl.").replace(".", "__")
        code, _, errors = called(words, **{f"{module}__run": lambda given: None})
        return code, errors.partition(";")[0]

    for words in (
        ["profile", "--output", "y", "--conf", "x"],
        ["grpo", "--conf", "x"],
        ["sft", "--conf", "x"],
        ["grpo", "--config", "x", "--print-conf"],
        ["make-model", "--outp", "x"],
        ["new", "loss", "x", "--outp", "x"],
        ["recipes", "--he"],
    ):
        cut = next(word for word in reversed(words) if word.startswith("--"))
        right = (2, f"refrl {words[0]}: there is no option {cut}")
        yield example(f"an option cut short: {' '.join(words)}", right, shortened, words)


class _Loops:
    """Loops that note what they are started with."""

    def __init__(self, **more: Any) -> None:
        self.noted: list[Any] = []

    def changes(self, *, launches: bool = False) -> dict[str, Any]:
        @contextmanager
        def cluster(config: Any) -> Iterator[None]:
            self.noted.append("cluster")
            yield
            self.noted.append("left")

        return {
            "training__grpo__run_grpo": lambda config, *more: self.noted.append(
                ("grpo", config.grpo.seed, *map(_kind, more))
            ),
            "training__sft__run_sft": lambda config, *more: self.noted.append(
                ("sft", config.sft.seed, *map(_kind, more))
            ),
            "cli__train__launch": lambda words, config: self.noted.append(
                (list(words), config.num_processes)
            ),
            "cli__train__ray_cluster": cluster,
            "cli__train__is_launcher": lambda config: launches,
            "cli__profile__is_launcher": lambda config: launches,
        }


def _kind(one: Any) -> str:
    return type(one).__name__


def _trained(words: Sequence[str], **options: Any) -> Any:
    loops = _Loops()
    code, _, errors = called(words, **loops.changes(**options))
    return code, loops.noted, errors


def _of_training() -> Iterator[WorkedExample]:
    smoke, warmup = ["--config", "grpo-smoke"], ["--config", "sft-warmup"]
    model = "policy.model_name=m"
    yield example(
        "refrl grpo",
        (0, ["cluster", ("grpo", 7), "left"], ""),
        _trained,
        ["grpo", *smoke, model, "grpo.seed=6", "grpo.seed=7"],
    )
    yield example(
        "refrl sft", (0, ["cluster", ("sft", 5), "left"], ""), _trained, ["sft", *warmup, model, "sft.seed=5"]
    )
    words = ["grpo", *smoke, model, "cluster.num_processes=2"]
    yield example(
        "refrl grpo with ranks", (0, ["cluster", (words, 2), "left"], ""), _trained, words, launches=True
    )
    yield example(
        "refrl grpo --print-config trains nothing", (0, [], ""), _trained, [*words, "--print-config"]
    )

    def shown() -> Any:
        _, printed, _ = called(["grpo", *smoke, model, "grpo.seed=9", "--print-config"])
        with_docs = [line for line in printed.splitlines() if line.startswith("#")]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(_folder()))
            (folder / "again.yaml").write_text(printed, encoding="utf-8")
            again = load_config(GRPORunConfig, folder / "again.yaml", [])
        first = load_config(GRPORunConfig, find_config("grpo-smoke"), [model, "grpo.seed=9"])
        return again == first, again.grpo.seed, bool(with_docs)

    yield example("what --print-config prints can be read", (True, 9, True), shown)


@contextmanager
def _folder() -> Iterator[str]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        yield folder


def _profiled(
    folder: Path, *words: str, loop: str = "grpo", exists: str | None = None, **options: Any
) -> Any:
    output = folder / "out"
    if exists is not None:
        output.mkdir()
        if exists:
            (output / exists).touch()
    seen: list[Any] = []
    recipe = "grpo-smoke" if loop == "grpo" else "sft-warmup"
    loops = _Loops()
    changes = loops.changes(**options)

    def note(config: Any, observer: Any) -> None:
        own = config.grpo if loop == "grpo" else config.sft
        seen.append((loop, own.max_num_steps, config.checkpointing.enabled, type(observer).__name__))
        seen.append(
            (
                observer._step,
                observer._directory == output,
                config.logger.log_dir == str(output / "logs")
                and config.checkpointing.checkpoint_dir == str(output / "checkpoints"),
            )
        )

    changes[f"training__{loop}__run_{loop}"] = note
    code, printed, errors = called(
        [
            "profile",
            "--loop",
            loop,
            "--config",
            recipe,
            "--output",
            str(output),
            "policy.model_name=m",
            *words,
        ],
        **changes,
    )
    return code, seen, errors.partition("; ")[0].replace(str(output), "OUT").strip(), "table.txt" in printed


def _into_file(folder: Path) -> Any:
    (folder / "x").write_text("x", encoding="utf-8")
    code, _, errors = called(
        ["profile", "grpo", "--config", "x", "--step", "1", "--output", str(folder / "x")]
    )
    return code, "is not an empty directory" in errors


def _of_profiles() -> Iterator[WorkedExample]:
    profiled = in_folder(_profiled)
    for loop in ("grpo", "sft"):
        yield example(
            f"a profile of {loop}",
            (0, [(loop, 3, False, "StepProfiler"), (3, True, True)], "", True),
            profiled,
            loop=loop,
        )
        logs, kept = "logger.log_dir=other", "checkpointing.checkpoint_dir=other"
        for option in (f"{loop}.max_num_steps=9", logs, "checkpointing.enabled=true", kept):
            own = (0, [(loop, 3, False, "StepProfiler"), (3, True, True)], "", True)
            yield example(f"a profile of {loop} with {option}", own, profiled, option, loop=loop)
    yield example(
        "a profile of the first step, into an empty folder",
        (0, [("grpo", 1, False, "StepProfiler"), (1, True, True)], "", True),
        profiled,
        "--step",
        "1",
        exists="",
    )
    bad = "refrl profile: "
    yield example(
        "a profile of no step",
        (2, [], f"{bad}--step 0: give a step from 1 on", False),
        profiled,
        "--step",
        "0",
    )
    yield example(
        "a profile into a used folder",
        (2, [], f"{bad}--output OUT is not an empty directory: name another one", False),
        profiled,
        exists="a",
    )
    in_use = (2, True)
    yield example("a profile into a file", in_use, in_folder(_into_file))
    yield example(
        "a profile of ranks",
        (2, [], f"{bad}cluster.num_processes: a profile is of one process", False),
        profiled,
        "cluster.num_processes=2",
        launches=True,
    )

    def steps(folder: Path, step: int) -> Any:
        noted: list[Any] = []

        def table(*, sort_by: str, row_limit: int) -> str:
            noted.append(("table", sort_by, row_limit))
            return f"by {sort_by}"

        averages = SimpleNamespace(table=table)
        made = SimpleNamespace(
            start=lambda: noted.append("started"),
            stop=lambda: noted.append("stopped"),
            export_chrome_trace=lambda path: noted.append(Path(path).relative_to(folder).as_posix()),
            key_averages=lambda: averages,
        )
        with patch("refrl.training.profiling.profile", lambda: made):
            profiler = StepProfiler(step, folder / "a" / "b")
        session: Any = None
        profiler.started(session)
        for number in range(1, 4):
            noted.append(number)
            one: Any = SimpleNamespace(step=number)
            (profiler.trained if number % 2 else profiler.tuned)(session, one)
        written = (folder / "a" / "b" / "table.txt").read_text(encoding="utf-8")
        return noted, written.splitlines()

    ends = ["stopped", "a/b/trace.json", ("table", "self_cpu_time_total", 40)]
    if not torch.cuda.is_available():
        written = ["by self_cpu_time_total"]
        yield example("a profile from the start", (["started", 1, *ends, 2, 3], written), in_folder(steps), 1)
        yield example(
            "a profile of a later step", ([1, 2, "started", 3, *ends], written), in_folder(steps), 3
        )
