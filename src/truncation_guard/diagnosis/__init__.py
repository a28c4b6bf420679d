"""Whether truncation held a finished run back, from what the run left behind.

`readers` make one `RunTrace` of it, whatever it is; findings and verdict rest on that alone.
"""
