#!/bin/sh
# Messages name what they speak of: phrases that name nothing, or several things of which one is
# meant, are not in the sources of any part.
set -u
cd "$(dirname "$0")/../.." || exit 1
BANNED='"[^"]*(an argument is NULL|a reserved field|a place or the region|lacks a function|[a-z_]+ or [a-z_]+ is NULL|[a-z_], [a-z_]+ or [a-z_]+ is NULL|the [a-z ]+ or [a-z ]+ is NULL|is NULL, too|is NULL,? or|a struct of %|the pointer (for|to) |(an?|some|one) (argument|parameter|field|value|option|pointer) is (NULL|wrong|invalid|not valid|out of range|too)|invalid (argument|parameter|value|option)|null pointer|bad (argument|parameter|value|option))[^"]*"'
PARTS="runtime loader format abi write serve packs tools python/native"
probe='  return FAIL("the server or job is NULL");'
echo "$probe" | grep -qE "$BANNED" || { echo "messages.sh finds nothing"; exit 1; }
# shellcheck disable=SC2086  # a list of folders
found=$(grep -rnE "$BANNED" $PARTS --include='*.c' --include='*.h' --include='*.def' --include='*.inc' | grep -v '_test\.c:')
[ -z "$found" ] || { echo "messages that name nothing:"; echo "$found"; exit 1; }
echo "no message that names nothing"
