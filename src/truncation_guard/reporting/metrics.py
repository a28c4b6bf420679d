"""The metrics of one generation batch.

A figure that was not measured is left out, so that a tracker's mean is a mean of numbers.
"""

from truncation_guard.batch.counts import BatchCounts


def batch_metrics(counts: BatchCounts) -> dict[str, float]:
    """Metrics of one generation batch, over all processes.

    | name | what it is |
    |---|---|
    | `truncation_guard/truncated_share` | share of completions that a limit cut |
    | `truncation_guard/cause/limit` | share cut by `max_completion_length` |
    | `truncation_guard/cause/context` | share cut by the context window |
    | `truncation_guard/cause/tool` | share left unfinished by the tool loop |
    | `truncation_guard/stopped_share` | share that ended below every limit without a stop token |
    | `truncation_guard/groups_truncated` | share of groups with a truncated completion |
    | `truncation_guard/groups_all_truncated` | share of groups with nothing else |
    | `truncation_guard/groups_without_signal` | share of groups whose advantages are all 0 |
    | `truncation_guard/survivor_advantage_sum` | over the groups with truncation, the mean of the
      sum of the other completions' advantages; absent without such a group |
    | `truncation_guard/reward_terminated` | mean reward of the completions that terminated |
    | `truncation_guard/reward_truncated` | mean reward of the truncated ones |
    | `truncation_guard/reward` | mean reward of all completions |
    | `truncation_guard/limit` | the limit in tokens that generation obeys |

    Rewards are as the reward functions gave them, weighted, before the mode changed them.
    Advantages are as the loss uses them.
    """
    total, groups = counts.completions, counts.groups
    figures = {
        "truncated_share": counts.share,
        **{f"cause/{cause}": number / total for cause, number in counts.causes.items()},
        "stopped_share": counts.stopped / total,
        "groups_truncated": groups.truncated / groups.groups,
        "groups_all_truncated": groups.all_truncated / groups.groups,
        "groups_without_signal": (
            None if groups.without_signal is None else groups.without_signal / groups.groups
        ),
        "survivor_advantage_sum": groups.survivor_advantage_sum,
        "reward_terminated": counts.reward_terminated,
        "reward_truncated": counts.reward_truncated,
        "reward": counts.reward,
        "limit": counts.limit,
    }
    return {
        f"truncation_guard/{name}": float(figure)
        for name, figure in figures.items()
        if figure is not None
    }
