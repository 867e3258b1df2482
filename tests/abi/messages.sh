#!/bin/sh
# Messages name what they speak of: phrases that name nothing are not in the sources.
set -u
cd "$(dirname "$0")/../.." || exit 1
BANNED='"[^"]*(an argument is NULL|a reserved field|a place or the region|lacks a function|[a-z_]+ or [a-z_]+ is NULL|[a-z_], [a-z_]+ or [a-z_]+ is NULL)[^"]*"'
found=$(grep -rnE "$BANNED" runtime loader abi --include='*.c' --include='*.h' | grep -vE '_test\.c|/writer|_check\.c:68:')
[ -z "$found" ] || { echo "messages that name nothing:"; echo "$found"; exit 1; }
echo "no message that names nothing"
