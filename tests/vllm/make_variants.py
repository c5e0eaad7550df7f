"""Makes copies of the tiny model with a silent fault: each is a real regression that a server
serves without an error.

    python make_variants.py MODEL_DIR OUT_DIR [NAME ...]

Needs the Python of the vLLM environment. Without names it makes all variants:

no-bos      The chat template lacks its beginning-of-text token: fluent wrong answers (Tokyo for
            Paris), broken JSON, and every prompt is one token shorter.
int4        The weights are rounded to 4 bits: the twelve sure answers keep their text and only
            their log-probabilities change; one near tie flips.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LARGEST_INT4 = 7


def no_bos(source: Path, out: Path) -> None:
    """Removes the beginning-of-text token from the template."""
    shutil.copytree(source, out, dirs_exist_ok=True)
    template = out / "chat_template.jinja"
    template.write_text(template.read_text().replace("{{ '<s>' }}", ""))


def int4(source: Path, out: Path) -> None:
    """Rounds every weight matrix to 4 bits, with one scale per row."""
    shutil.copytree(source, out, dirs_exist_ok=True)
    # the file instead of the model class, since importing transformers takes long
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
