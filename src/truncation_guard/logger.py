"""The logger of the package, and the prefix of each line it writes."""

import logging

PREFIX = "[truncation-guard]"
logger = logging.getLogger("truncation_guard")
