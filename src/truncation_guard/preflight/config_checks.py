"""What is wrong with a configuration, found before the first rollout.

Each check asks the trainer's settings one question, apart from the others: a check that fails
reports nothing and stops none. All of them read, and none changes anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from truncation_guard.logger import PREFIX, logger
from truncation_guard.marks_for_tests import contains_faults
from truncation_guard.options import Mode
from truncation_guard.preflight.soft_punishment import misfit, soft_punishments
from truncation_guard.reporting.setup_finding import SetupFinding
from truncation_guard.trainer.context_window import get_context_window
from truncation_guard.trainer.end_of_turn import end_of_turn_tokens, template_ends
from truncation_guard.trainer.limit import get_limit, limit_name
from truncation_guard.trainer.prompts import is_conversational, prompt_lengths, sample_prompts
from truncation_guard.trainer.settings import generation_rules, get_num_generations, get_tokenizer
from truncation_guard.trainer.unsloth import rebuilds_loss_mask
from truncation_guard.trainer.versions import is_grpo

_LONGER_WINDOW = "use a longer window (with vLLM: vllm_max_model_length)"
_COMPARABLE = 2
"""Completions that a group needs for a baseline."""


@dataclass(frozen=True, slots=True)
class _SetUp:
    trainer: Any
    mode: Mode
    truncated_weight: float
    prompts: Sequence[Any]
    """A sample of the training data's; empty where it was not read."""


def check_setup(trainer: Any, mode: Mode, truncated_weight: float) -> list[SetupFinding]:
    """Everything that is wrong with the configuration of a training that is about to begin.

    Changes nothing, makes no collective and raises nothing. It takes the time of tokenizing 64
    prompts, so one process is enough.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer whose construction is complete.
        mode: the mode in effect.
        truncated_weight: for `downweight`.

    Returns:
        At most one finding of each kind, and one for each soft punishment; the most urgent first.
    """
    prompts = _contained(sample_prompts, trainer)
    setup = _SetUp(trainer, mode, truncated_weight, prompts)
    return [finding for check in _CHECKS for finding in _contained(check, setup)]


def soft_punishment_findings(trainer: Any, limit: int | None) -> list[SetupFinding]:
    """The soft overlong punishments that do not fit a limit.

    Like `check_setup` it raises nothing; it skips reward functions that cannot be inspected.

    Args:
        trainer: a GRPOTrainer or RLOOTrainer.
        limit: in tokens; None without one.
    """
    return [] if limit is None else _contained(_soft_punishments_beyond, (trainer, limit))


def _soft_punishments_beyond(place: tuple[Any, int]) -> list[SetupFinding]:
    trainer, limit = place
    name = limit_name(trainer)
    facts = [misfit(found, limit, name) for found in soft_punishments(trainer.reward_funcs)]
    remedy = f"build it with max_completion_len={limit} and a soft_punish_cache below that"
    return [SetupFinding("soft-punishment", fact, remedy) for fact in facts if fact is not None]


def _check_context(setup: _SetUp) -> list[SetupFinding]:
    trainer = setup.trainer
    limit, name = get_limit(trainer), limit_name(trainer)
    window = get_context_window(trainer, limit)
    if window is None:
        return []
    lengths = prompt_lengths(trainer, setup.prompts)
    longest = max(lengths, default=1)  # an unseen prompt has at least one token
    where = f"the context window of {window} tokens"
    if longest >= window:
        full = sum(length >= window for length in lengths)
        fact = (
            f"{full} of {len(lengths)} prompts that were looked at leave no room for a completion "
            f"in {where}: the longest has {longest}"
        )
        remedy = f"take such prompts out of the data set, shorten them, or {_LONGER_WINDOW}"
        return [SetupFinding("context", fact, remedy)]
    if limit is None or longest + limit <= window:
        return []
    if not lengths:
        fact = f"{name}={limit} leaves no room for a prompt in {where}"
        remedy = f"set {name} to at most {window} less the longest prompt, or {_LONGER_WINDOW}"
        return [SetupFinding("context", fact, remedy)]
    too_long = sum(length + limit > window for length in lengths)
    beyond = (
        "completions are cut off there" if trainer.use_vllm else "past it a model writes nonsense"
    )
    fact = (
        f"{name}={limit} and prompts of up to {longest} tokens do not fit into {where} together "
        f"({too_long} of {len(lengths)} prompts that were looked at): {beyond}"
    )
    remedy = f"set {name} to at most {window - longest}, shorten the prompts, or {_LONGER_WINDOW}"
    return [SetupFinding("context", fact, remedy)]


def _check_stop_tokens(setup: _SetUp) -> list[SetupFinding]:
    trainer = setup.trainer
    rules = generation_rules(trainer)
    if rules.stops_on_request or not is_conversational(setup.prompts):
        return []
    ends = template_ends(trainer)
    # Of several tokens the first one that is known to end a turn has to stop generation (Phi-3's
    # <|end|>, not the <|endoftext|> behind it); where none is known, any of them will do.
    known = [end for end in ends if end in end_of_turn_tokens(get_tokenizer(trainer))]
    ends = known[:1] or ends
    if not ends or any(token in rules.stop_token_ids for token, _ in ends):
        return []
    token, name = ends[0]
    stops = ", ".join(map(str, sorted(rules.stop_token_ids))) or "no token"
    fact = (
        f"the chat template ends an answer with token {token} ({name}), but generation only stops "
        f"at {stops}: answers that are finished run on to the limit"
    )
    remedy = (
        f"before the trainer is built, add {token} to model.generation_config.eos_token_id (with "
        "vLLM also to generation_kwargs: stop_token_ids)"
    )
    return [SetupFinding("stop-tokens", fact, remedy)]


def _check_soft_punishment(setup: _SetUp) -> list[SetupFinding]:
    return soft_punishment_findings(setup.trainer, get_limit(setup.trainer))


def _check_mask(setup: _SetUp) -> list[SetupFinding]:
    """`mask_truncated_completions` where it undoes a mode, or where the mode makes it superfluous.

    Beside `observe`, and beside `downweight` with weight 0, it is no finding: the advantages are
    the same, and it takes truncated completions out of the KL term.
    """
    weight = setup.truncated_weight
    if not setup.trainer.mask_truncated_completions:
        return []
    masked = "mask_truncated_completions=True takes truncated completions out of the loss"
    remedy = "set mask_truncated_completions=False"
    if setup.mode == "penalize":
        fact = (
            f"{masked}, so the penalty never reaches them: it only moves the baseline of the "
            "completions that finish"
        )
        return [SetupFinding("masked-twice", fact, remedy)]
    if setup.mode == "downweight" and 0.0 < weight < 1.0:
        fact = f"{masked}, so truncated_weight={weight:g} has no effect"
        return [SetupFinding("masked-twice", fact, f"{remedy}, or truncated_weight=0.0")]
    if setup.mode == "exclude" and not rebuilds_loss_mask(setup.trainer):
        fact = (
            f"{masked}, which mode='exclude' does as well, and also those that ended below every "
            "limit without a stop token"
        )
        return [SetupFinding("masked-twice", fact, remedy)]
    return []


def _check_other_terms(setup: _SetUp) -> list[SetupFinding]:
    """Terms of the loss that `downweight`, which multiplies advantages, does not reach."""
    trainer, args = setup.trainer, setup.trainer.args
    if setup.mode != "downweight" or setup.truncated_weight == 1.0:
        return []
    if trainer.mask_truncated_completions:
        return []
    but_not = (
        f"mode='downweight' multiplies the advantages of truncated completions by "
        f"{setup.truncated_weight:g}, but not their"
    )
    findings = []
    # RLOO subtracts its KL term from the rewards, so it goes with the advantage.
    if is_grpo(trainer) and trainer.beta > 0.0:
        fact = (
            f"{but_not} KL term: with beta={trainer.beta:g} all of their tokens are still pulled "
            "towards the reference model"
        )
        remedy = "use mode='exclude', which takes them out of the KL term too, or set beta=0.0"
        findings.append(SetupFinding("kl-term", fact, remedy))
    # TRL has an entropy bonus since 1.8, in GRPO alone.
    if getattr(args, "entropy_coef", 0.0) or getattr(args, "use_adaptive_entropy", False):
        fact = f"{but_not} entropy bonus, which all of their tokens still get"
        remedy = (
            "use mode='exclude', which takes them out of the bonus too, or set entropy_coef=0.0"
        )
        findings.append(SetupFinding("entropy-term", fact, remedy))
    return findings


def _check_unsloth(setup: _SetUp) -> list[SetupFinding]:
    trainer = setup.trainer
    if setup.mode != "exclude" or trainer.mask_truncated_completions:
        return []
    if not rebuilds_loss_mask(trainer):
        return []
    fact = (
        "Unsloth builds the loss mask anew from the token ids, so the completions that "
        "mode='exclude' takes out of it stay in the denominator of the loss and in its KL term"
    )
    remedy = (
        "set mask_truncated_completions=True, which this version of Unsloth heeds, or update "
        "unsloth and unsloth_zoo"
    )
    return [SetupFinding("unsloth", fact, remedy)]


def _check_groups(setup: _SetUp) -> list[SetupFinding]:
    number = get_num_generations(setup.trainer, training=True)
    if setup.mode != "exclude" or number - 1 >= _COMPARABLE:
        return []
    fact = (
        f"with num_generations={number} one truncated completion empties its group: mode='exclude' "
        "leaves a single one, which has nothing to be compared with"
    )
    remedy = f"raise num_generations to at least {_COMPARABLE + 1}, or use mode='downweight'"
    return [SetupFinding("groups", fact, remedy)]


_CHECKS: tuple[Callable[[_SetUp], list[SetupFinding]], ...] = (
    _check_context,
    _check_stop_tokens,
    _check_soft_punishment,
    _check_mask,
    _check_other_terms,
    _check_unsloth,
    _check_groups,
)


@contains_faults
def _contained(look: Callable[[Any], list[Any]], at: Any) -> list[Any]:
    """The findings of a check; none where it fails, as a chat template may."""
    try:
        return look(at)
    except Exception:
        name = getattr(look, "__name__", "a look")
        logger.debug("%s preflight: %s failed", PREFIX, name, exc_info=True)
        return []
