set -euo pipefail
trap 'echo "line $LINENO ended with $?" >&2' ERR
echo before
grep -q nothing <<<"something" || echo "not there"
false | true
echo after
