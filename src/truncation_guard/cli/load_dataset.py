"""Opens the data set that `--dataset_name` names: a file, a saved folder, or a name on the hub."""

from pathlib import Path
from typing import Any

_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
DEFAULT_SPLIT = "train"


def load_dataset_argument(name: str, config: str | None, split: str) -> Any:
    """The data set.

    Raises:
        ValueError: naming what could not be read.
    """
    from datasets import load_dataset, load_from_disk

    path = Path(name)
    if path.is_file() or path.suffix.lower() in _FORMATS:
        _check_file(path, config, split)
    try:
        if path.is_file():
            kind = _FORMATS[path.suffix.lower()]
            return load_dataset(kind, data_files={split: str(path)}, split=split)
        if not any((path / name).exists() for name in ("dataset_dict.json", "state.json")):
            return load_dataset(name, config, split=split)
        saved = load_from_disk(name)
    except Exception as error:  # whatever the reader of a format raises: StopIteration, too
        cause = error.__cause__ or error
        raise ValueError(f"{name} cannot be read: {str(cause) or 'it is empty'}") from error
    return _one_split(name, saved, split)


def _check_file(path: Path, config: str | None, split: str) -> None:
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(
            f"{path} is not a file that can be read. Pass one of {', '.join(_FORMATS)}, a folder, "
            "or a name on the hub."
        )
    if config is not None or split != DEFAULT_SPLIT:
        what = f"configuration {config!r}" if config is not None else f"split {split!r}"
        raise ValueError(f"{path} is a single file, which has no {what}. Leave the option out.")


def _one_split(name: str, saved: Any, split: str) -> Any:
    if not isinstance(saved, dict):
        return saved
    if split not in saved:
        raise ValueError(f"{name} has no split {split!r}; it has {', '.join(saved)}.")
    return saved[split]
