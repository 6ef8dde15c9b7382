#!/usr/bin/env bash
# Installs the wheel and then the source distribution from dist/ in an environment of its
# own, and runs tests and the quick start there, away from the source tree.
#
# usage: [REQUIREMENTS="..."] tools/test_distributions.sh PYTHON [TESTS ...]
#
# Some of the tests may do with less than the extra "test", which is large: REQUIREMENTS
# are installed in its place.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$1
shift
[ $# -gt 0 ] || set -- tests

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
pip="$work/venv/bin/python -m pip --disable-pip-version-check --quiet"
cp -r "$root/tests" "$root/benchmarks" "$root/examples" "$root/pyproject.toml" "$work"
cd "$work"
export MPLBACKEND=Agg SCIPY_ARRAY_API=1
unset PYTHONPATH

wheel=$(echo "$root"/dist/*.whl)
if [ -n "${REQUIREMENTS:-}" ]; then
	# shellcheck disable=SC2086 # several words
	$pip install "$wheel[plot]" $REQUIREMENTS
else
	$pip install "$wheel[test]"
fi
venv/bin/python -m pytest -q "$@"
venv/bin/python examples/plot_quickstart.py

$pip install --force-reinstall --no-deps "$root"/dist/*.tar.gz
venv/bin/python -m pytest -q "$@"
