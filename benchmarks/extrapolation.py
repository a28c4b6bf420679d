"""How good is a limit that is extrapolated past what was seen?

    python benchmarks/extrapolation.py

The completion lengths of a real model (`data/smollm2_lengths.json`, made by `smollm2_lengths.py`)
are cut after the fact, so that 30, 50 and 70 % of them are truncated. `LengthSample` sees only what
is left of them, and its range for p90 and p95 is held against the percentile of the whole: once for
all the completions there are, and for 50 random draws of 128 of them, which is what a profile of 32
prompts has. "that end" leaves out the completions that never ended: all of the others do, which is
what an extrapolation assumes. About two minutes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from truncation_guard import LengthSample

FILE = Path(__file__).parent / "data" / "smollm2_lengths.json"
LIMIT = 1024
SHARES, QUANTILES, DRAWS, DRAWN = (0.3, 0.5, 0.7), (0.9, 0.95), 50, 128
HEADINGS = (
    "completions",
    "truncated",
    "limit",
    "percentile",
    "truth",
    "range",
    "its upper end holds",
    "draws: no number",
    "draws: range holds the truth",
    "draws: upper end is enough",
    "draws: upper / truth",
)


def cut(lengths: np.ndarray, share: float) -> tuple[LengthSample, int]:
    """What a limit that truncates this share leaves to see; infinite lengths never end."""
    limit = int(min(np.quantile(lengths, 1 - share, method="inverted_cdf"), LIMIT))
    return LengthSample(np.minimum(lengths, limit), lengths <= limit), limit


def row(kind: str, lengths: np.ndarray, share: float, q: float) -> list[str]:
    """One row of the table."""
    truth = np.quantile(lengths, q, method="inverted_cdf")
    sample, limit = cut(lengths, share)
    found = sample.quantile_range(q)
    draws = np.random.default_rng(0)
    ranges: list[Any] = [
        cut(draws.choice(lengths, DRAWN), share)[0].quantile_range(q) for _ in range(DRAWS)
    ]
    named = [pair for pair in ranges if pair is not None]
    within = [low <= truth <= high for low, high in named]
    enough = [truth <= high for _, high in named]
    ratios = [high / truth for _, high in named]
    return [
        kind,
        f"{share:.0%}",
        str(limit),
        f"p{100 * q:.0f}",
        f"{truth:.0f}" if np.isfinite(truth) else "never ends",
        "none" if found is None else f"{found[0]} - {found[1]}",
        "" if found is None else f"{(lengths <= found[1]).mean():.0%}",
        f"{1 - len(named) / DRAWS:.0%}",
        f"{np.mean(within):.0%}" if named else "",
        f"{np.mean(enough):.0%}" if named else "",
        f"{np.median(ratios):.2f}" if named and np.isfinite(truth) else "",
    ]


def main() -> None:
    """Print the table."""
    data = json.loads(FILE.read_text())
    table = Table(*HEADINGS, title=f"{data['model']}, temperature {data['temperature']}")
    for kind in ("word problems", "explanations"):
        ended = np.array(data[kind]["ended"], dtype=float)
        whole = np.concatenate([ended, np.full(data[kind]["cut"], np.inf)])
        for name, lengths in ((kind, whole), (f"{kind} that end", ended)):
            for share in SHARES:
                for q in QUANTILES:
                    table.add_row(*row(name, lengths, share, q))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
