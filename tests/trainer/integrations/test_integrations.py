"""Libraries that drive the loop go on after kill -9 in the middle of an epoch: each sample once, by the weights alone.

The scripts train a parameter that counts. Their weights are those of an undisturbed run.
"""

import functools
import json
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accounts import alone, in_turn, tallied
from own_scripts import SCRIPTS, reported, started, verified

from torchtally import events

N, EPOCHS, SIZE, KILLED = 101, 3, 4, 137  # as scripts/counted.py
LIGHTNING, TRAINER, ACCELERATE, KERAS = (
    f"{name}_counted.py" for name in ("lightning", "trainer", "accelerate", "keras")
)
ACCUMULATED = {
    LIGHTNING: '{"accumulate_grad_batches": 4}',
    TRAINER: '{"gradient_accumulation_steps": 4}',
    ACCELERATE: "4",
}
DEFAULT = {LIGHTNING: "{}", TRAINER: "{}", ACCELERATE: "1", KERAS: "3"}


def by_night(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.nightly)


def run(
    folder: Path, script: str, *arguments: str, world: int = 2, dies: int = 0, by: int = signal.SIGKILL
) -> subprocess.CompletedProcess[str]:
    """Start a script, whose loader has a worker, and whose last rank sends itself a signal in a batch."""
    variables = {"TORCHTALLY_OUTPUT": str(folder), "DIES_IN": str(dies), "DIES_BY": str(int(by)), "WORKERS": "1"}
    return started(SCRIPTS / script, str(folder), *arguments, world=world, **variables)


def found(folder: Path) -> dict[str, Any]:
    """How often each sample is in the weights, and the hash of the others."""
    values: dict[str, Any] = json.loads((folder / "found-0.json").read_text())
    return values


def proved(folder: Path, *ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What is found after the starts of a run, which is proved, and what its last line says beside the proof."""
    assert ended[-1].returncode == 0, ended[-1].stderr
    assert "✓ the proof holds" in verified("".join(each.stdout for each in ended))
    return found(folder) | {"caveats": tallied(ended[-1].stdout)[-1].get("caveats")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The outcome of a run that nobody kills."""

    @functools.cache
    def outcome(script: str, *arguments: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("undisturbed")
        return proved(folder, run(folder, script, *arguments))

    return outcome


def resumes(folder: Path, script: str, *arguments: str, dies: int, before: int = 2, after: int = 2) -> dict[str, Any]:
    killed = run(folder, script, *arguments, world=before, dies=dies)
    assert killed.returncode == KILLED, killed.stderr
    return proved(folder, killed, run(folder, script, *arguments, world=after))


@pytest.mark.parametrize("script", [LIGHTNING, TRAINER, ACCELERATE, KERAS])
def test_a_killed_run_goes_on_with_each_sample_once(script: str, tmp_path: Path, undisturbed: Any) -> None:
    outcome = resumes(tmp_path, script, DEFAULT[script], dies=22)
    assert outcome == undisturbed(script, DEFAULT[script])
    assert outcome["caveats"] is None
    once = [EPOCHS + 1, EPOCHS] if script == TRAINER else [EPOCHS]  # its contract is padded: 101 samples, 2 ranks
    assert sorted(set(outcome["times"]), reverse=True) == once


@pytest.mark.parametrize("script", [LIGHTNING, TRAINER, ACCELERATE, KERAS])
def test_a_run_that_is_asked_to_stop_saves_and_goes_on_there(
    script: str, tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal reaches one rank, in the middle of a step. All of them stop after the same one, and lose nothing.

    Each has a folder of its own, and resumes from what rank 0 has in its own.
    """
    monkeypatch.setenv("OWN_FOLDERS", "1")
    stopped = run(tmp_path, script, DEFAULT[script], dies=17, by=signal.SIGTERM)
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    assert "stopped by signal 15, which rank 1 received, after a step and a checkpoint" in stopped.stderr
    [end] = [each for each in reported(stopped.stdout) if isinstance(each, events.Stopped)]
    again = run(tmp_path, script, DEFAULT[script])
    assert proved(tmp_path, stopped, again) == undisturbed(script, DEFAULT[script])
    [begin] = [each for each in reported(again.stdout) if isinstance(each, events.Resumed)]
    steps = [divmod(each.epoch * 13 * 2 * SIZE + each.position, 2 * SIZE) for each in (end, begin)]  # 13 in an epoch
    assert end.saved and steps[0] == steps[1] and steps[0][1] == 0


@pytest.mark.parametrize("collator", ["untold", "of the library"])
def test_a_collator_needs_no_declaration(collator: str, undisturbed: Any) -> None:
    assert {*undisturbed(TRAINER, "{}", collator)["times"]} == {EPOCHS, EPOCHS + 1}  # its contract is padded


def test_a_trainer_can_leave_out_the_step_that_is_not_full(undisturbed: Any) -> None:
    times = undisturbed(TRAINER, '{"dataloader_drop_last": true}')["times"]
    assert 0 < sum(times) < EPOCHS * N and {*times} == {*range(min(times), EPOCHS + 1)}


@pytest.mark.nightly
@pytest.mark.parametrize("script", [LIGHTNING, TRAINER, ACCELERATE])
def test_what_the_program_drops_is_in_no_weights(script: str, tmp_path: Path) -> None:
    times = resumes(tmp_path, script, DEFAULT[script], "drops", dies=22)["times"]
    assert {index for index, each in enumerate(times) if not each} == {*range(3, N, 10)}
    most = [EPOCHS + 1, EPOCHS] if script == TRAINER else [EPOCHS]
    assert {*times} <= {0, *most}


@pytest.mark.parametrize("script_name", [LIGHTNING, TRAINER, ACCELERATE, KERAS])
def test_what_overflows_is_dropped(script_name: str, tmp_path: Path) -> None:
    """Among it are the last batches of an epoch and of the run, which have a sample each."""
    ended = alone(script, script_name, str(tmp_path), DEFAULT[script_name], "overflows")
    assert ended["code"] == 0, ended["err"]
    assert tallied(ended["out"])[-1]["phases"]["train"]["dropped"] == 4 + 4 + 1 + 1
    assert sum(found(tmp_path)["times"]) == EPOCHS * N - 10


@pytest.mark.nightly
@pytest.mark.parametrize("script_name", [LIGHTNING, TRAINER, ACCELERATE])
def test_what_is_accumulated_with_what_overflows_is_dropped(script_name: str, tmp_path: Path) -> None:
    """Two steps of 4 batches, and the two last ones of an epoch, with 2."""
    ended = alone(script, script_name, str(tmp_path), ACCUMULATED[script_name], "overflows")
    assert ended["code"] == 0, ended["err"]
    assert tallied(ended["out"])[-1]["phases"]["train"]["dropped"] == 2 * 16 + 2 * 5
    assert sum(found(tmp_path)["times"]) == EPOCHS * N - 42


@pytest.mark.parametrize(
    ("script", "begins_again", "dropped"),
    [
        (LIGHTNING, False, 2 * (12 + 5)),
        by_night(TRAINER, False, 2 * (12 + 6)),  # its contract is padded
        by_night(KERAS, False, 2 * (12 + 5)),
        # It tells no adapter of a step that it leaves out, so a checkpoint does not know yet that the batch is dropped.
        by_night(ACCELERATE, True, 12 + 2 * 12),
    ],
)
def test_what_overflows_before_a_checkpoint_is_dropped_or_handed_out_again(
    script: str, begins_again: bool, dropped: int, tmp_path: Path
) -> None:
    """Of the 9 batches of an epoch on each of 3 ranks, the last one overflows, and the checkpoint follows."""
    killed = run(tmp_path, script, DEFAULT[script], "overflows", world=3, dies=11)
    assert killed.returncode == KILLED, killed.stderr
    ended = run(tmp_path, script, DEFAULT[script], "overflows", world=3)
    times = proved(tmp_path, killed, ended)["times"]
    epochs = {line["epoch"] for line in tallied(ended.stdout) if line["phase"] == "train"}
    assert epochs == ({1, 2, 3} if begins_again else {2, 3})
    train = tallied(ended.stdout)[-1]["phases"]["train"]
    assert sum(times) == train["consumed"]
    assert train["dropped"] == dropped


# A script with its arguments, where it is killed, and with which arguments nobody kills it, if with others.
BY_NIGHT: list[tuple[str, list[str], int, list[str] | None]] = [
    # Of 13 batches, 4 steps are made, of which the last has one batch.
    *((each, [ACCUMULATED[each]], 32, None) for each in ACCUMULATED),
    # It saves between a step and the end of its batch.
    (ACCELERATE, ["4", "saves early"], 32, ["4"]),
    (LIGHTNING, ["{}", "saves"], 99, ["{}"]),
    # It validates in an epoch, saves once an epoch, or optimizes by hand.
    *((LIGHTNING, ["{}", how], 30, ["{}"]) for how in ("validates", "epochs", "manual")),
    (TRAINER, ['{"save_strategy": "epoch"}'], 32, ["{}"]),
]
BY_DAY = (LIGHTNING, [ACCUMULATED[LIGHTNING], "saves"], 99, [ACCUMULATED[LIGHTNING]])  # within an accumulation


@pytest.mark.parametrize(
    ("script", "arguments", "dies", "others"),
    [BY_DAY, *(by_night(*each) for each in BY_NIGHT)],
)
def test_a_killed_run_goes_on_at_a_step(
    script: str, arguments: list[str], dies: int, others: list[str] | None, tmp_path: Path, undisturbed: Any
) -> None:
    assert resumes(tmp_path, script, *arguments, dies=dies) == undisturbed(script, *(others or arguments))


BEST_AT_END = {"load_best_model_at_end": True, "greater_is_better": True, "eval_strategy": "steps", "eval_steps": 3}


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        (LIGHTNING, ["{}", "averages"], "those of WeightAveraging"),
        by_night(LIGHTNING, ["{}", "swa"], "those of StochasticWeightAveraging"),
        by_night(LIGHTNING, ["{}", "tests"], "those of a checkpoint that the Trainer has loaded to test"),
        by_night(
            TRAINER, [json.dumps(BEST_AT_END | {"label_names": ["indices"]})], "the best checkpoint of the Trainer"
        ),
        (KERAS, ["3", "averages"], "since the last step of fit()"),
        by_night(KERAS, ["3", "averages, and swaps"], "since the last step of fit()"),
    ],
)
def test_the_last_line_says_what_a_library_puts_in_the_place_of_the_weights(
    script: str, arguments: list[str], said: str, tmp_path: Path, undisturbed: Any
) -> None:
    """They are not those of the last step, in which each sample is as often as there are epochs."""
    outcome = resumes(tmp_path, script, *arguments, dies=30)
    assert outcome == undisturbed(script, *arguments)
    assert sum(outcome["times"]) < EPOCHS * N
    assert outcome["caveats"] == [f"weights replaced by the program: {said}"]


@pytest.mark.parametrize(
    ("script", "options", "dies", "before", "after"),
    [
        *(by_night(each, DEFAULT[each], 24, 2, 3) for each in (LIGHTNING, ACCELERATE, KERAS)),
        # Within an accumulation: 3 ranks have saved after 6 of 9 batches. For 2 ranks, that is after 9 of 13.
        by_night(LIGHTNING, '{"accumulate_grad_batches": 2}', 8, 3, 2),
        # From the end of an epoch: 3 ranks save in every third step, of 9 in an epoch, or 3 of 4 batches each.
        (LIGHTNING, "{}", 11, 3, 2),
        by_night(LIGHTNING, ACCUMULATED[LIGHTNING], 11, 3, 2),
    ],
)
def test_other_ranks_share_out_the_rest(
    script: str, options: str, dies: int, before: int, after: int, tmp_path: Path
) -> None:
    assert resumes(tmp_path, script, options, dies=dies, before=before, after=after)["times"] == [EPOCHS] * N


@pytest.mark.parametrize("batch", [6, pytest.param(25, marks=pytest.mark.nightly)])
def test_lightning_goes_on_from_what_an_exception_has_saved(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is saved within an accumulation: of batches 4 to 7 of an epoch, or of 24 and 25, which are its last."""
    monkeypatch.setenv("WORKERS", "1")
    arguments = (LIGHTNING, str(tmp_path), ACCUMULATED[LIGHTNING], "raises", str(batch))
    with pytest.raises(RuntimeError, match="raised"):
        alone(script, *arguments)
    ended = alone(script, *arguments)
    assert ended["code"] == 0, ended["err"]
    assert found(tmp_path)["times"] == [EPOCHS] * N


def limited(script: str, steps: int, accumulate: int) -> tuple[str, str]:
    """The arguments of a script that makes so many steps of the optimizer."""
    options = {"max_steps": steps} | ({"max_epochs": -1} if script == LIGHTNING else {})
    more = json.loads(ACCUMULATED[script]) if accumulate == 4 else {}
    return json.dumps(options | more), "steps"


@pytest.mark.nightly
@pytest.mark.parametrize(("steps", "accumulate", "batches"), [(33, 1, 7), (10, 4, 8)])
@pytest.mark.parametrize("script", [LIGHTNING, TRAINER])
def test_a_plan_in_steps_goes_on_in_its_last_epoch(
    script: str, steps: int, accumulate: int, batches: int, tmp_path: Path, undisturbed: Any
) -> None:
    """In the third epoch are 7 of 33 steps, and 2 of 10 that take 4 batches each."""
    arguments = limited(script, steps, accumulate)
    outcome = resumes(tmp_path, script, *arguments, dies=32)
    assert outcome == undisturbed(script, *arguments)
    assert sum(outcome["times"]) == 2 * (N if script == LIGHTNING else N + 1) + batches * 8


@pytest.mark.parametrize("script_name", [LIGHTNING, TRAINER])
def test_a_librarys_own_limit_of_steps_is_a_plan(script_name: str, tmp_path: Path) -> None:
    """Steps of 4 batches, of which an epoch of 26 batches has 7."""
    ended = alone(script, script_name, str(tmp_path), *limited(script_name, 10, 4))
    assert ended["code"] == 0, ended["err"]
    assert "✓ the first 48 samples of the order exactly once" in ended["out"]
    assert sum(found(tmp_path)["times"]) == N + 48


@pytest.mark.nightly
def test_the_librarys_flattened_batches_are_proved(tmp_path: Path) -> None:
    ended = alone(script, TRAINER, str(tmp_path), "{}", "flattened")
    assert ended["code"] == 0, ended["err"]
    assert found(tmp_path)["times"] == [EPOCHS] * N


@pytest.mark.parametrize(("file", "left"), [("latest.weights.h5", 100), ("training_metadata.json", 0)])
def test_keras_goes_on_from_a_backup_that_is_cut_off(file: str, left: int, tmp_path: Path, undisturbed: Any) -> None:
    """They are of the last batches of two epochs, whose ends Keras has not seen."""
    killed = run(tmp_path, KERAS, "13", dies=27)
    assert killed.returncode == KILLED, killed.stderr
    cut = tmp_path / "backup" / file
    cut.write_bytes(cut.read_bytes()[:left])
    assert proved(tmp_path, killed, run(tmp_path, KERAS, "13", "rank 0 repairs")) == undisturbed(KERAS, "3")


@pytest.mark.nightly
def test_the_last_line_says_what_lightning_has_pruned(tmp_path: Path) -> None:
    ended = alone(script, LIGHTNING, str(tmp_path), "{}", "prunes")
    assert ended["code"] == 0, ended["err"]
    assert sum(found(tmp_path)["times"]) < EPOCHS * N
    assert tallied(ended["out"])[-1]["caveats"] == ["weights replaced by the program: those of ModelPruning"]


@pytest.mark.parametrize("how", ["best", "restores"])
def test_keras_may_load_the_best_weights_after_the_training(how: str, tmp_path: Path) -> None:
    ended = alone(script, KERAS, str(tmp_path), "20", how)
    assert ended["code"] == 0, ended["err"]
    assert "✓ every sample exactly once" in ended["out"]
    assert tallied(ended["out"])[-1]["caveats"] == ["weights replaced by the program: since the last step of fit()"]


@pytest.mark.nightly
def test_keras_may_restore_the_best_epoch_of_a_resumed_start(tmp_path: Path) -> None:
    """That is the second one, as Keras saves no weights of the first."""
    outcome = resumes(tmp_path, KERAS, "3", "restores", dies=20)
    assert outcome["times"] == [EPOCHS - 1] * N
    assert outcome["caveats"] == ["weights replaced by the program: since the last step of fit()"]


def test_a_second_fit_of_keras_goes_on(tmp_path: Path) -> None:
    ended = alone(script, KERAS, str(tmp_path), "3", "twice")
    assert ended["code"] == 0, ended["err"]
    assert found(tmp_path)["times"] == [EPOCHS] * N


# What is left out, or is otherwise, ends with a sentence.


def script(name: str, folder: str, *arguments: str) -> None:
    sys.path.insert(0, str(SCRIPTS))
    sys.argv = [name, folder, *arguments]
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")


COMMIT = "0 of the 26 batches that were handed out are committed; call commit() after optimizer.step()"
UNUSED = "of the 26 batches that were handed out, no step of an optimizer has used gradients"


HALVES = [
    (LIGHTNING, ["{}", "no callback"], 3, COMMIT),
    (LIGHTNING, ["{}", "no loss"], 2, "skip(reason) before `continue`"),
    (
        LIGHTNING,
        ['{"max_steps": 20, "max_epochs": -1}'],
        2,
        'pass max_epochs=3, or max_steps=78; or plan {"train": Steps(20)}',
    ),
    (
        LIGHTNING,
        ['{"max_steps": 9, "max_epochs": -1, "accumulate_grad_batches": 4}', "steps of a batch"],
        2,
        'makes no step of the last 3, as it accumulates 4: plan {"train": Steps(9, accumulate=4)}',
    ),
    (LIGHTNING, ['{"max_epochs": 2}'], 2, "do not make the plan of train: pass max_epochs=3, or max_steps=78"),
    (LIGHTNING, ['{"limit_train_batches": 7}'], 2, "the Trainer would take 7 of the 26 batches"),
    (LIGHTNING, ['{"num_sanity_val_steps": 2}', "validates"], 2, "pass num_sanity_val_steps=0"),
    (
        LIGHTNING,
        ["{}", "validation raises"],
        3,
        "1 were lost and 0 duplicated (ranks whose shard was wrong: 0): the loop left the epoch in step 6 of 6",
    ),
    (LIGHTNING, ["{}", "never averages"], 3, "the weights are not those that the last step has left"),
    (LIGHTNING, ["{}", "batch norm"], 2, "StochasticWeightAveraging adds an epoch that trains nothing"),
    (LIGHTNING, ["{}", "drained"], 143, ""),  # a retry goes on
    (TRAINER, ["{}", "no mixin"], 3, "the plan has 3 epochs of train, and 0 were made"),
    (TRAINER, ["{}", "own loader"], 2, "get_train_dataloader() must return what AccountMixin returns"),
    (TRAINER, ["{}", "stops"], 3, "the loop left the epoch in step 4 of 26"),
    (TRAINER, ['{"max_steps": 20}'], 2, 'or max_steps=78; or plan {"train": Steps(20)}'),
    (TRAINER, ['{"auto_find_batch_size": true}'], 2, "auto_find_batch_size must be False"),
    (TRAINER, ['{"ignore_data_skip": true}'], 2, "ignore_data_skip must be False"),
    (TRAINER, ['{"train_sampling_strategy": "group_by_length"}'], 2, "must be random or sequential"),
    (ACCELERATE, ["4", "skips late"], 2, "with the gradients of a batch that counts as dropped"),
    (ACCELERATE, ["4", "unmarked"], 3, f"of 2 {UNUSED}"),
    (KERAS, ["3", "no callback"], 3, COMMIT),
    (KERAS, ["3", "unbuilt"], 2, "call model.test_on_batch(inputs, labels) with any samples"),
    (KERAS, ["3", "accumulates"], 2, "gradient_accumulation_steps=4 must be None"),
    (KERAS, ["3", "accumulates, scaled"], 2, "gradient_accumulation_steps=4 must be None"),
]


@pytest.mark.parametrize("library", [LIGHTNING, TRAINER, ACCELERATE, KERAS])
def test_half_of_an_adapter_is_no_proof(library: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    each = [case for case in HALVES if case[0] == library]
    turns = in_turn(1, ((script, library, str(tmp_path / str(at)), *case[1]) for at, case in enumerate(each)))
    for (_, arguments, code, sentence), [ended] in zip(each, turns, strict=True):
        with subtests.test(str(arguments)):
            assert (ended["code"], sentence in ended["err"]) == (code, True), ended["err"]


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        (LIGHTNING, ["{}", "apart"], "the Trainer averages gradients over 1 of 2 ranks"),
        (KERAS, ["3", "apart"], "ranks 0 and 1 have different weights after the same step"),
    ],
)
def test_ranks_that_train_models_of_their_own_are_refused(
    name: str, arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    ended = run(tmp_path, name, *arguments)
    assert (ended.returncode, sentence in ended.stderr) == (2, True), ended.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "how", "sentence"),
    [
        (LIGHTNING, "not loaded", "is not complete, and this start has not loaded its state"),
        (TRAINER, "not loaded", "is not complete, and this start has not loaded its state"),
        (TRAINER, "checkpoint without", "the checkpoint has no state of the account"),
        (ACCELERATE, "not loaded", "is not complete, and this start has not loaded its state"),
        (ACCELERATE, "not registered", "is not complete, and this start has not loaded its state"),
        (ACCELERATE, "skips", "marked() must receive what account.loader returned"),
        (KERAS, "loaded before", "the account's state was not loaded with them"),
    ],
)
def test_a_restart_without_the_state_is_refused(name: str, how: str, sentence: str, tmp_path: Path) -> None:
    killed = run(tmp_path, name, DEFAULT[name], how, world=1, dies=40)
    assert killed.returncode == KILLED, killed.stderr
    ended = run(tmp_path, name, DEFAULT[name], how, world=1)
    assert (ended.returncode, sentence in ended.stderr) == (2, True), ended.stderr


@pytest.mark.nightly
def test_the_hugging_face_trainer_has_no_steps_of_other_ranks(tmp_path: Path) -> None:
    assert run(tmp_path, TRAINER, dies=32).returncode == KILLED
    ended = run(tmp_path, TRAINER, world=1)
    assert ended.returncode == 2
    assert "the Trainer would resume after epoch 1, step 4, and the account after epoch 2" in ended.stderr
