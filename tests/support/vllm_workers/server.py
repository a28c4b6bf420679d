"""Makes the tiny model, then becomes a vLLM server with the arguments that follow the folder."""

import os
import sys
from pathlib import Path

from support.vllm_engine import save_model

if __name__ == "__main__":
    folder = sys.argv[1]
    save_model(Path(folder))
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", folder]
    os.execv(sys.executable, [sys.executable, *server, *sys.argv[2:]])
