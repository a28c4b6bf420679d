"""Why a run did not learn, as far as truncation goes, from what it left behind.

The one idea: whatever there is (`from_record`, `trainer_state`, `log_lines`, `tables`) becomes one
`RunTrace`; checks look at nothing else, each turns into a `Finding`, and together they make the
verdict.
"""
