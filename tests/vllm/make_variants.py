"""Make quietly broken copies of the tiny model: each a real regression that a server goes on
serving without an error.

    python make_variants.py MODEL_DIR OUT_DIR [NAME ...]      (with the Python of the vLLM
    environment; all of them by default)

no-bos      The chat template lost its beginning-of-text token: fluent wrong answers (Tokyo for
Paris), broken JSON, and every
            prompt is one token shorter.
int4        The weights were rounded to 4 bits: the twelve sure answers keep their text and only
their log-probabilities move;
            one near tie flips.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LARGEST_INT4 = 7


def no_bos(source: Path, out: Path) -> None:
    """The template without its beginning-of-text token."""
    shutil.copytree(source, out, dirs_exist_ok=True)
    template = out / "chat_template.jinja"
    template.write_text(template.read_text().replace("{{ '<s>' }}", ""))


def int4(source: Path, out: Path) -> None:
    """Every weight matrix rounded to 4 bits, one scale a row."""
    shutil.copytree(source, out, dirs_exist_ok=True)
    # The file itself, not the model class: importing transformers would take longer than everything
    # else here.
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            step = tensor.abs().amax(dim=1, keepdim=True).float() / LARGEST_INT4
            tensors[name] = (torch.round(tensor.float() / step) * step).to(tensor.dtype)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


VARIANTS: dict[str, Callable[[Path, Path], None]] = {"no-bos": no_bos, "int4": int4}

if __name__ == "__main__":
    model_dir, out_dir, *names = sys.argv[1:]
    for variant in names or VARIANTS:
        VARIANTS[variant](Path(model_dir), Path(out_dir) / variant)
