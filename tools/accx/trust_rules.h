/* tools/accx/trust_rules.h - changes lines of the rules file in the user's folder of keys. Only the
 * library interprets lines: it must accept a changed file before that replaces the old one. */
#ifndef ACCX_TRUST_RULES_H_
#define ACCX_TRUST_RULES_H_

#include "accx.h"

/* Removes the lines that begin with `without` (NULL: none), and adds `line` (NULL: none). */
int accx_rules_change(const char* without, const char* line);
/* The floors: calls `each` for every name with its highest version. The texts live until exit. */
void accx_rules_floors(void (*each)(void* user, const char* name, const char* version), void* user);
/* The highest floor of a name as a text, or NULL. */
const char* accx_rules_floor(const char* name);
/* Converts "2027-01-31" (to the end of that day, UTC), "2027-01-31T12:00:00Z" or "90d" (from now)
 * to the form of rules files; NULL for anything else. */
const char* accx_rules_time(const char* text);
/* Seconds since 1970 as "2027-01-31T12:00:00Z". */
const char* accx_rules_time_text(int64_t time_s);

#endif /* ACCX_TRUST_RULES_H_ */
