"""The figures that findings rest on: of the whole run, its beginning and its end.

A run is read by its fifths: single batches are noise, and a mean over all of it hides that
something got better or worse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import sqrt
from statistics import fmean, pvariance

from truncation_guard.diagnosis.limit_history import LastLimit, find_limit, last_phase
from truncation_guard.diagnosis.run import Figure, LogEntry, RunTrace
from truncation_guard.diagnosis.truncated_share import below_share, truncated_share

PARTS = 5
NOTABLE = 0.05
"""Share of truncated completions that ScaleRL's stable runs stay under."""
MUCH = 0.25
"""Share of truncated completions from which on hardly a group is untouched."""
CLEAR = 2.0
"""Two fifths differ if they are this many standard errors apart."""
_ROUNDING = 1e-9
_ENOUGH_REWARDS = 5
_SMALL = 0.05
"""Share of the range of the rewards; a smaller change is none, however sure it is."""
_NEAR_TOP = 0.9


@dataclass(frozen=True, slots=True)
class Course:
    """How a figure went over a run."""

    overall: float
    first: float
    """Mean of the first fifth."""
    last: float
    """Mean of the last fifth; where the limit changed, of its entries under the last one."""
    lowest: float
    """Mean of the lowest fifth."""
    highest: float
    """Of a single entry."""
    highest_at: float
    """Its step."""
    entries: int
    last_above: float | None
    """The last step above 5 % in the last fifth whose mean is above 5 %."""
    noise: float
    """Standard error of the difference of two fifths."""

    @property
    def is_notable(self) -> bool:
        """Whether this truncated share was ever worth a word."""
        first = self.first - CLEAR * self.noise  # of small batches, which may be chance
        return max(self.overall, self.last, first) > NOTABLE + _ROUNDING


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of a run; an unknown one is None."""

    limit: LastLimit
    steps: tuple[float, float] | None
    """First and last step of the training entries."""
    cut: Course | None
    """Truncated share; from TRL's metrics, an upper bound."""
    cut_last_limit: Course | None
    """The same, of the entries under the last limit."""
    bounded: bool
    """Whether `cut` is only an upper bound."""
    unfinished: float | None
    """Share, of any length, without a stop token that TRL or the guard knows."""
    below: float | None
    """Share that ended below the limit without a known stop token; from TRL's metrics, a lower
    bound."""
    elsewhere: float | None
    """Share cut by the context window or the tool loop."""
    ended_length: float | None
    """Mean length of the terminated completions in the last fifth."""
    constant_length: int | None
    """The short length in tokens that all completions have at the end, none with a known stop
    token: it may be the limit or not."""
    reward: Course | None
    reward_change: str | None
    """`rises`, `falls` or `flat`; None for too few entries."""
    top: str | None
    """`one`: the reward ended near 1 from all its functions, the most that most functions give.
    `unknown`: hardly any rewards differ, and they are above 1, so their maximum is unknown."""
    uniform: float | None
    """Share of the entries in which all rewards are equal."""
    silent: Course | None
    """Share of groups without signal."""
    evaluation_cut: float | None
    """Truncated share in the last evaluation."""
    evaluation_step: float | None

    @property
    def learns(self) -> bool:
        """Whether the reward rises, or has nowhere to rise to."""
        is_at_top = self.top == "one" and self.reward_change != "falls"
        return self.reward_change == "rises" or is_at_top


def measure(trace: RunTrace) -> Measures:
    """The figures of a run."""
    limit = find_limit(trace)
    training, evaluation = trace.training, trace.evaluation
    cuts = {
        id(entry): truncated_share(entry, trace.with_tools) for entry in (*training, *evaluation)
    }

    def cut(entry: LogEntry) -> float | None:
        return cuts[id(entry)]

    under_last = last_phase(training)
    last_fifth = _last_part(training, under_last)
    spreads = [entry.reward_std for entry in training if entry.reward_std is not None]
    steps = [entry.step for entry in training if entry.step is not None]
    last_evaluation = [entry for entry in evaluation if entry.step == evaluation[-1].step]
    silent = _course(training, lambda entry: entry.silent_groups, under_last)
    uniform = sum(spread == 0 for spread in spreads) / len(spreads) if spreads else None
    return Measures(
        limit=limit,
        steps=(steps[0], steps[-1]) if steps else None,
        cut=_course(training, cut, under_last),
        cut_last_limit=_course(under_last, cut, under_last),
        bounded=any(_is_bound(entry, cut(entry), trace.with_tools) for entry in training),
        unfinished=mean_of(training, lambda entry: entry.unfinished),
        below=mean_of(training, lambda entry: below_share(entry, trace.with_tools)),
        elsewhere=mean_of(training, lambda entry: entry.elsewhere),
        ended_length=_ended_length(last_fifth, limit.tokens),
        constant_length=_constant_length(last_fifth),
        reward=_course(training, lambda entry: entry.reward, training),
        reward_change=_change([entry.reward for entry in training if entry.reward is not None]),
        top=_top(training, max(uniform or 0.0, 0.0 if silent is None else silent.last)),
        uniform=uniform,
        silent=silent,
        evaluation_cut=mean_of(last_evaluation, cut),
        evaluation_step=last_evaluation[-1].step if last_evaluation else None,
    )


def mean_of(entries: Sequence[LogEntry], figure: Figure) -> float | None:
    """The mean over the entries that have the figure, weighted by their completions if known.

    For the record that is exact. The entries of a log weigh alike: all but the last cover equally
    many batches of one size.
    """
    known = [(value, e.completions or 1) for e in entries if (value := figure(e)) is not None]
    if not known:
        return None
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)


def _course(
    entries: Sequence[LogEntry], figure: Figure, under_last: Sequence[LogEntry]
) -> Course | None:
    seen = [entry for entry in entries if figure(entry) is not None]
    if not seen:
        return None
    parts = [mean for part in _parts(seen) if (mean := mean_of(part, figure)) is not None]
    last = mean_of(_last_part(seen, under_last), figure)
    values = [value for entry in seen if (value := figure(entry)) is not None]
    top = max(range(len(values)), key=values.__getitem__)
    return Course(
        overall=mean_of(seen, figure) or 0.0,
        first=parts[0],
        last=parts[-1] if last is None else last,
        lowest=min(parts),
        highest=values[top],
        highest_at=seen[top].step or 0.0,
        entries=len(seen),
        last_above=_last_above(seen, values),
        noise=_noise(values),
    )


def _parts(entries: Sequence[LogEntry]) -> list[Sequence[LogEntry]]:
    """Fifths, or single entries if there are fewer than five."""
    number = min(PARTS, len(entries))
    edges = [len(entries) * i // number for i in range(number + 1)]
    return [entries[start:end] for start, end in pairwise(edges)]


def _last_part(entries: Sequence[LogEntry], under_last: Sequence[LogEntry]) -> Sequence[LogEntry]:
    """The last fifth, without entries under an earlier limit or across a change.

    Where the limit changed right at the end, the last entries under one limit.
    """
    if not entries:
        return []
    kept = {id(entry) for entry in under_last}
    of_it = [entry for entry in entries if id(entry) in kept]
    size = len(_parts(entries)[-1])
    newest = entries[-size:]
    return [entry for entry in newest if id(entry) in kept] or of_it[-size:] or newest


def _is_bound(entry: LogEntry, cut: float | None, with_tools: bool) -> bool:
    """Whether the truncated share is only an upper bound."""
    if entry.truncated is not None or not cut:
        return False
    if entry.ratio is None or bool(below_share(entry, with_tools)):
        return True
    return entry.under is not None and entry.under.how == "between"


def _constant_length(entries: Sequence[LogEntry]) -> int | None:
    doubtful = [e for e in entries if e.under is not None and e.under.how == "doubtful"]
    return round(doubtful[-1].longest or 0) if 2 * len(doubtful) > len(entries) else None


def _top(entries: Sequence[LogEntry], equal: float) -> str | None:
    """Whether the last fifth has the highest reward there is; see `Measures.top`."""
    rewards = [entry for entry in entries if entry.reward is not None]
    if not rewards:
        return None
    newest = _parts(rewards)[-1]
    means = [entry.function_means or (entry.reward, entry.reward) for entry in newest]
    lowest = fmean(low or 0.0 for low, _ in means)
    highest = max(high or 0.0 for _, high in means)
    if highest > 1 + _ROUNDING:
        return "unknown" if equal >= 0.5 and lowest > 0 else None
    return "one" if lowest >= _NEAR_TOP else None


def _last_above(entries: Sequence[LogEntry], values: Sequence[float]) -> float | None:
    width = max(len(values) // PARTS, 1)
    sums = [0.0, *accumulate(values)]
    for end in range(len(values), width - 1, -1):
        if (sums[end] - sums[end - width]) / width > NOTABLE + _ROUNDING:
            last = max(i for i in range(end - width, end) if values[i] > NOTABLE)
            return entries[last].step
    return None


def _ended_length(entries: Sequence[LogEntry], limit: int | None) -> float | None:
    """Mean length of the terminated completions."""
    tokens = ended = 0.0
    for entry in entries:
        length, unfinished = entry.terminated_length(limit), entry.unfinished
        if length is not None and unfinished is not None:
            weight = (1 - unfinished) * (entry.completions or 1)
            tokens, ended = tokens + length * weight, ended + weight
    return tokens / ended if ended else None


def _noise(values: Sequence[float]) -> float:
    """From the scatter of neighbours, which hides a trend."""
    steps = [later - earlier for earlier, later in pairwise(values)]
    return sqrt(pvariance(steps, 0.0) / max(len(values) // PARTS, 1)) if steps else 0.0


def _change(rewards: Sequence[float]) -> str | None:
    """Whether the reward of the last fifth differs from that of the first."""
    if len(rewards) < _ENOUGH_REWARDS:
        return None
    size = len(rewards) // PARTS
    difference = fmean(rewards[-size:]) - fmean(rewards[:size])
    span = max(rewards) - min(rewards)
    least = max(CLEAR * _noise(rewards), _SMALL * span)
    if abs(difference) <= least + _ROUNDING:
        # Between single entries noise may hide as much as that: neither a change nor none.
        return None if size == 1 and abs(difference) > 0.5 * span else "flat"
    return "rises" if difference > 0 else "falls"
