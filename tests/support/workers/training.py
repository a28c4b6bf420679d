"""For `processes/test_training.py`: trainings on two processes, and on three."""

import json
from datetime import timedelta
from typing import Any

import torch
from support import canned, tiny
from support.distributed import folder_of, scenario
from transformers import TrainerCallback

from truncation_guard import TruncationGuardCallback
from truncation_guard.record import FILE_NAME
from truncation_guard.trainer import processes

FOLDER = folder_of("training")


def case_5() -> Any:
    """Each process has an output folder of its own, to see who writes."""
    folder = FOLDER / f"case5-{canned.RANK}"
    made = canned.trainer(folder, canned.CASE_5, TruncationGuardCallback())
    result = canned.train(made)
    record = folder / FILE_NAME
    lines = record.read_text().splitlines() if record.exists() else None
    return result | {"record": lines and [json.loads(line) for line in lines]}


def mode(name: str, batch: canned.Batch) -> Any:
    guard = TruncationGuardCallback(mode=name, **canned.MODE_SETTINGS)
    return canned.train(canned.trainer(FOLDER / name, batch, guard))


def gradient(loss: str, layout: str, batch: canned.Batch) -> dict[str, Any]:
    """One SGD step over two micro-batches, with old log-probabilities of another model."""
    guard = TruncationGuardCallback(mode="exclude")
    made = canned.trainer(
        FOLDER / "gradient",
        batch,
        guard,
        micro_batches=2,
        model=tiny.model(dtype=torch.float64),
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        num_iterations=2,  # so that TRL takes old log-probabilities
        **({"algorithm": "rloo"} if loss == "rloo" else {"loss_type": loss}),
    )
    old = tiny.model(seed=1, dtype=torch.float64).state_dict()
    log_probabilities, compute_loss = made._get_per_token_logps_and_entropies, made._compute_loss
    kept: list[int] = []

    def old_ones(model: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return log_probabilities(model, *args, **kwargs)
        policy = made.accelerator.unwrap_model(model)
        new = {name: value.clone() for name, value in policy.state_dict().items()}
        policy.load_state_dict(old)
        found = log_probabilities(model, *args, **kwargs)
        policy.load_state_dict(new)
        if canned.RANK == 1:
            found[0][1, 0] = -1000.0  # row 7, cut off: its ratio is infinite
        return found

    def counted(model: Any, inputs: Any) -> Any:
        kept.append(int((inputs["completion_ids"] == tiny.EOS).any(dim=1).sum()))
        return compute_loss(model, inputs)

    made._get_per_token_logps_and_entropies, made._compute_loss = old_ones, counted
    before = canned.weights(made)
    result = canned.train(made)
    step = before - canned.weights(made)
    torch.save(step, FOLDER / f"{loss} {layout} {canned.RANK}.pt")
    return result | {"kept_per_micro_batch": kept}


def collectives(guarded: bool) -> dict[str, Any]:
    """Three batches of training, with evaluations of two after the second and the last."""
    made = canned.trainer(
        FOLDER / "collectives",
        canned.CASE_5,
        TruncationGuardCallback(mode="exclude") if guarded else None,
        eval_dataset=tiny.prompts(6),
        max_steps=3,
        eval_strategy="steps",
        eval_steps=2,
        loss_type="dapo",
    )
    outputs = tiny.capture(made)
    with canned.Collectives() as counted:
        made.train()
    return {"batches": len(outputs), "counts": dict(counted.counts)}


def evaluation() -> dict[str, Any]:
    """Without a training before it."""
    guard = TruncationGuardCallback()
    folder = FOLDER / "evaluation"
    made = canned.trainer(folder, canned.CASE_5, guard, eval_dataset=tiny.prompts(6))
    metrics = [made.evaluate(), made.evaluate()]
    record = (folder / FILE_NAME).read_text().splitlines()
    return {
        "metrics": [{k: v for k, v in m.items() if canned.GUARD in k} for m in metrics],
        "record": [json.loads(line)["kind"] for line in record],
    }


def one_sided_evaluation() -> dict[str, Any]:
    guard = TruncationGuardCallback() if canned.RANK == 0 else None
    folder = FOLDER / "one-sided evaluation"
    made = canned.trainer(folder, canned.CASE_5, guard, eval_dataset=tiny.prompts(6))
    with canned.Collectives() as counted:
        metrics = [made.evaluate(), made.evaluate()]
    return {
        "metrics": [k for m in metrics for k in m if canned.GUARD in k],
        "counts": dict(counted.counts),
    }


def removed() -> dict[str, Any]:
    """The guard leaves after the second of four steps."""
    guard = TruncationGuardCallback(mode="exclude")
    made = canned.trainer(FOLDER / "removed", canned.CASE_5, guard, max_steps=4)
    made.add_callback(canned.AtStep(2, lambda: made.remove_callback(guard)))
    return canned.train(made)


def second_training() -> dict[str, Any]:
    folder = FOLDER / "second"
    guard = TruncationGuardCallback(cooldown=1000)
    made = canned.trainer(folder, canned.CASE_5, guard, max_steps=1)
    outputs = tiny.capture(made)
    first = canned.train(made, outputs)
    second = canned.train(made, outputs)
    kinds = [json.loads(line)["kind"] for line in (folder / FILE_NAME).read_text().splitlines()]
    return {"first": first, "second": second, "record": kinds}


def resumed(restore: bool) -> dict[str, Any]:
    """Two steps, a checkpoint, and two more in a new trainer."""
    folder = FOLDER / ("resumed and restored" if restore else "resumed")
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    first = canned.trainer(
        folder, canned.CASE_5, TruncationGuardCallback(cooldown=1000, window=64), **settings
    )
    first.train()
    guard = TruncationGuardCallback(cooldown=1000, window=64)
    made = canned.trainer(
        folder,
        canned.CASE_5,
        guard,
        restore_callback_states_from_checkpoint=restore,
        **settings,
    )
    states: list[Any] = []

    class Look(TrainerCallback):
        """Sees what the guard has restored before the first rollout."""

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            known = made.callback_handler.callbacks
            restored = next(c for c in known if isinstance(c, TruncationGuardCallback))
            states.append(restored.state()["attributes"]["restored_state"]["monitor"])

    made.add_callback(Look())
    result = canned.train(made, resume_from_checkpoint=str(folder / "checkpoint-2"))
    return result | {"states": states}


def one_sided_training() -> str | None:
    """The last one: afterwards the process group is of no use."""
    guard = TruncationGuardCallback() if canned.RANK == 0 else None
    made = canned.trainer(FOLDER / "one-sided", canned.CASE_5, guard)
    try:
        made.train()
    except RuntimeError as error:  # of gloo on the other one, which waits until this one has left
        return str(error)
    return None


def two() -> None:
    """What two processes do."""
    scenario("case 5", case_5)
    for each in canned.MODES:
        scenario(f"mode {each}", lambda each=each: mode(each, canned.TWELVE_IN_FOURS))
    for each in ("dapo", "grpo", "rloo"):
        for layout, batch in canned.LAYOUTS.items():
            scenario(f"{each} {layout}", lambda args=(each, layout, batch): gradient(*args))
    scenario("collectives without", lambda: collectives(False))
    scenario("collectives with", lambda: collectives(True))
    scenario("evaluation", evaluation)
    scenario("removed", removed)
    scenario("second training", second_training)
    scenario("resumed", lambda: resumed(False))
    scenario("resumed and restored", lambda: resumed(True))
    processes.TIMEOUT = timedelta(seconds=2)
    scenario("one-sided evaluation", one_sided_evaluation)
    scenario("one-sided training", one_sided_training)


def three() -> None:
    """What three processes do."""
    for each in canned.MODES:
        scenario(f"mode {each}", lambda each=each: mode(each, canned.TWELVE_IN_SIXES))
    processes.TIMEOUT = timedelta(seconds=2)
    scenario("one-sided evaluation", one_sided_evaluation)
    scenario("training after it", lambda: mode("downweight", canned.TWELVE_IN_SIXES))


def scenarios() -> None:
    """After these the process group is of no use."""
    two() if canned.PROCESSES == 2 else three()
